//! The little that a shim reads of a bundle's `config.json`.

use std::{collections::HashMap, path::Path};

use runtime_proto::errdefs::Code;
use serde::Deserialize;

use crate::{
    error::{Error, Result},
    files,
};

/// The largest spec that is read, in bytes: more than a message of containerd, by which it came, has room for.
const MAX_SPEC: u64 = 32 << 20;

/// The parts of an OCI spec that matter here; everything else is the runtime's. Null is what Go takes it for: nothing said.
#[derive(Debug, Default, Deserialize)]
pub struct Spec {
    #[serde(default)]
    annotations: Option<HashMap<String, Option<String>>>,
    #[serde(default)]
    linux: Option<Linux>,
}

#[derive(Debug, Default, Deserialize)]
struct Linux {
    #[serde(default)]
    namespaces: Option<Vec<Namespace>>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    path: Option<String>,
}

impl Namespace {
    fn is_new_for_pids(&self) -> bool {
        self.kind.as_deref() == Some("pid") && self.path.as_deref().unwrap_or_default().is_empty()
    }
}

/// The annotations that put containers into one shim; the first that is present counts.
const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];

impl Spec {
    /// Reads the spec of a bundle.
    ///
    /// # Errors
    /// When the file is missing or is no OCI spec; the path is named.
    pub fn read(bundle: &Path) -> Result<Self> {
        let path = bundle.join("config.json");
        let doing = || format!("read {}", path.display());
        let bytes = files::read(&path, MAX_SPEC).map_err(|error| Error::io(doing(), error))?;
        Self::parse(&bytes).map_err(|error| Error::caused(Code::InvalidArgument, doing(), error))
    }

    /// Reads a spec from bytes.
    ///
    /// # Errors
    /// When they are no OCI spec.
    pub fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        // A struct may be given as an array of its fields, too; a spec may not.
        let object: &[u8] = if bytes.trim_ascii_start().starts_with(b"[") { b"" } else { bytes };
        serde_json::from_slice(object)
    }

    /// The group of containers that share a shim with this one, if it is in one.
    pub fn group(&self) -> Option<&str> {
        let annotations = self.annotations.as_ref()?;
        let group = GROUPS.iter().find_map(|key| annotations.get(*key))?;
        Some(group.as_deref().unwrap_or_default())
    }

    /// Whether the kernel ends all processes of the container with its init: when the spec asks
    /// for a pid namespace, and not for that of somebody else by its path.
    pub fn has_own_pid_namespace(&self) -> bool {
        let namespaces = self.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
        namespaces.is_some_and(|namespaces| namespaces.iter().any(Namespace::is_new_for_pids))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec(json: &str) -> Spec {
        Spec::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn pid_namespaces() {
        let own = r#"{"linux":{"namespaces":[{"type":"mount"},{"type":"pid"}]}}"#;
        assert!(spec(own).has_own_pid_namespace());
        assert!(
            spec(r#"{"linux":{"namespaces":[{"type":"pid","path":""}]}}"#).has_own_pid_namespace()
        );
        assert!(
            spec(r#"{"linux":{"namespaces":[{"type":null},{"type":"pid","path":null}]}}"#)
                .has_own_pid_namespace()
        );
        for shared in [
            r#"{"linux":{"namespaces":[{"type":"pid","path":"/proc/1/ns/pid"}]}}"#,
            r#"{"linux":{"namespaces":[{"type":"mount"}]}}"#,
            r#"{"linux":{"namespaces":null}}"#,
            r#"{"linux":null}"#,
            "{}",
        ] {
            assert!(!spec(shared).has_own_pid_namespace(), "{shared}");
        }
    }

    #[test]
    fn the_first_group_annotation_counts() {
        let both = r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"pod",
            "io.containerd.runc.v2.group":"group","other":"x"}}"#;
        assert_eq!(spec(both).group(), Some("group"));
        let pod = r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"pod"}}"#;
        assert_eq!(spec(pod).group(), Some("pod"));
        assert_eq!(spec(r#"{"annotations":null}"#).group(), None);
        assert_eq!(spec(r#"{"annotations":{"other":null}}"#).group(), None);
    }

    #[test]
    fn what_is_no_spec_is_an_error_with_the_path() {
        let bundle = tempfile::tempdir().unwrap();
        let missing = Spec::read(bundle.path()).unwrap_err();
        assert!(missing.to_string().contains("config.json"), "{missing}");
        for broken in ["", "[]", "null", "{\"linux\":", "{\"annotations\":{\"a\":1}}"] {
            std::fs::write(bundle.path().join("config.json"), broken).unwrap();
            let error = Spec::read(bundle.path()).unwrap_err();
            assert!(error.to_string().contains("config.json"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Spec::parse(&bytes);
        }
    }
}
