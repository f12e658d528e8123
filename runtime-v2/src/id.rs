//! Names that are safe to put into paths, checked once, at the edge.
//!
//! The rule is containerd's own for identifiers: alphanumeric words joined by single `.`, `_` or
//! `-`, at most 76 bytes. So an id can neither climb out of a directory nor be hidden in one.

use std::{fmt, str::FromStr};

use runtime_proto::errdefs::Code;

use crate::error::{Error, Result};

/// The longest identifier, in bytes.
pub const MAX_LEN: usize = 76;

/// Whether `text` is an identifier by containerd's rule.
fn is_identifier(text: &str) -> bool {
    text.len() <= MAX_LEN
        && text
            .split(['.', '_', '-'])
            .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Checks `text`.
            ///
            /// # Errors
            /// `InvalidArgument` unless it is an identifier.
            pub fn new(text: impl Into<String>) -> Result<Self> {
                let text = text.into();
                if is_identifier(&text) {
                    return Ok(Self(text));
                }
                Err(Error::new(
                    Code::InvalidArgument,
                    format!(concat!("invalid ", $what, " {:?}: not an identifier"), text),
                ))
            }

            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }
    };
}

identifier! {
    /// A namespace of containerd: one user's view of a node.
    Namespace, "namespace"
}
identifier! {
    /// A container, and its task: they share the name.
    ContainerId, "task id"
}
identifier! {
    /// A further process in a container.
    ExecId, "exec id"
}

/// What one bundle, one shim entry and one task are known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Whose.
    pub namespace: Namespace,
    /// Which.
    pub id: ContainerId,
}

impl Key {
    /// Checks both names.
    ///
    /// # Errors
    /// `InvalidArgument` unless both are identifiers.
    pub fn new(namespace: impl Into<String>, id: impl Into<String>) -> Result<Self> {
        Ok(Self { namespace: Namespace::new(namespace)?, id: ContainerId::new(id)? })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_rule_is_that_of_containerd() {
        for good in ["a", "c1", "a.b-c_d", "0", &"x".repeat(MAX_LEN)] {
            assert!(ContainerId::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(MAX_LEN + 1);
        for bad in ["", ".", "..", "../x", ".x", "x.", "a/b", "a..b", "a b", "ä", "a\0", &long] {
            let error = ContainerId::new(bad).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_identifier_is_one_plain_path_component(text in "\\PC{0,80}") {
            if let Ok(id) = ContainerId::new(text) {
                let path = std::path::Path::new(id.as_str());
                prop_assert_eq!(path.components().count(), 1);
                prop_assert!(!id.as_str().starts_with('.'));
            }
        }
    }
}
