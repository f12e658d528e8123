//! What a shim finds on stdin at `start`.

use protobuf::Message;

use super::BootstrapParams;
use crate::types::Any;

/// The largest stdin a shim reads, in bytes; the limit is containerd's own.
pub const MAX_STDIN: usize = 10 << 20;

/// Stdin of `start`, read.
#[derive(Debug, Clone, PartialEq)]
pub enum StartInput {
    /// Nothing: an older containerd without runtime options.
    Nothing,
    /// Runtime options of an older containerd.
    Options(Any),
    /// The parameters that 2.3 and later always send.
    Params(Box<BootstrapParams>),
}

/// Why stdin cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// More than [`MAX_STDIN`] bytes.
    #[error("more than {MAX_STDIN} bytes on stdin")]
    TooLarge,
    /// Neither parameters nor options.
    #[error("stdin of {0} bytes is neither bootstrap parameters nor runtime options")]
    Garbled(usize),
    /// Parameters for another shim.
    #[error("bootstrap parameters are for {found:?}, not for {wanted:?}")]
    OtherInstance {
        /// What the parameters say, as namespace/id.
        found: String,
        /// What the command line says, as namespace/id.
        wanted: String,
    },
}

impl StartInput {
    /// Tells what `bytes` are, for the shim started with this `-namespace` and `-id`.
    ///
    /// An `Any` whose value happens to be text decodes as parameters too, with the type URL in the
    /// place of the id. So parameters are believed only if they name this very shim, or if they
    /// cannot be an `Any` of options.
    ///
    /// # Errors
    /// One of [`InputError`].
    pub fn decode(bytes: &[u8], namespace: &str, id: &str) -> Result<Self, InputError> {
        if bytes.is_empty() {
            return Ok(StartInput::Nothing);
        }
        if bytes.len() > MAX_STDIN {
            return Err(InputError::TooLarge);
        }
        let params = BootstrapParams::parse_from_bytes(bytes).ok();
        if let Some(params) = &params
            && params.instance_id == id
            && params.namespace == namespace
        {
            return Ok(StartInput::Params(Box::new(params.clone())));
        }
        if let Ok(any) = Any::parse_from_bytes(bytes)
            && looks_like_type_url(&any.type_url)
        {
            return Ok(StartInput::Options(any));
        }
        match params {
            Some(params) => Err(InputError::OtherInstance {
                found: format!("{}/{}", params.namespace, params.instance_id),
                wanted: format!("{namespace}/{id}"),
            }),
            None => Err(InputError::Garbled(bytes.len())),
        }
    }
}

/// Type URLs are full names, with at least one dot, or paths; ids of shims may have dots but the
/// caller has compared those already.
fn looks_like_type_url(url: &str) -> bool {
    !url.is_empty()
        && url.contains(['.', '/'])
        && url.chars().all(|c| c.is_ascii_alphanumeric() || "._/-+:".contains(c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::any;

    fn params(namespace: &str, id: &str) -> Vec<u8> {
        let mut params = BootstrapParams::new();
        params.instance_id = id.into();
        params.namespace = namespace.into();
        params.write_to_bytes().unwrap()
    }

    #[test]
    fn parameters_for_this_shim_are_parameters() {
        let bytes = params("ns", "c1");
        assert_eq!(bytes, b"\x0a\x02c1\x12\x02ns");
        let StartInput::Params(params) = StartInput::decode(&bytes, "ns", "c1").unwrap() else {
            panic!("not read as parameters");
        };
        assert_eq!((params.namespace.as_str(), params.instance_id.as_str()), ("ns", "c1"));
    }

    #[test]
    fn options_are_options_even_when_their_value_is_text() {
        let options = any::raw("containerd.runc.v1.Options", b"\x1a\x05/text".to_vec());
        let bytes = options.write_to_bytes().unwrap();
        assert!(BootstrapParams::parse_from_bytes(&bytes).is_ok(), "the trap this test is about");
        assert_eq!(StartInput::decode(&bytes, "ns", "c1"), Ok(StartInput::Options(options)));
    }

    #[test]
    fn the_rest_is_an_error_that_says_what() {
        assert_eq!(StartInput::decode(b"", "ns", "c1"), Ok(StartInput::Nothing));
        let other = StartInput::decode(&params("ns", "c2"), "ns", "c1").unwrap_err();
        assert_eq!(other.to_string(), r#"bootstrap parameters are for "ns/c2", not for "ns/c1""#);
        assert_eq!(StartInput::decode(&[0xff; 9], "ns", "c1"), Err(InputError::Garbled(9)));
        let large = vec![0; MAX_STDIN + 1];
        assert_eq!(StartInput::decode(&large, "ns", "c1"), Err(InputError::TooLarge));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = StartInput::decode(&bytes, "ns", "c1");
            let _ = super::super::Bootstrap::decode(&bytes);
        }
    }
}
