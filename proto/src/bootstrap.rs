//! What is said at `shim start`, in every era.
//!
//! | containerd | stdin of `start` | stdout of `start` |
//! |---|---|---|
//! | 1.6 | `Any` of runtime options, or nothing | the address |
//! | 1.7 | the same | the address, or JSON of version 2 |
//! | 2.0 to 2.2 | the same | the address, or JSON of version 2 or 3 |
//! | 2.3 and later | [`BootstrapParams`] | protobuf `BootstrapResult`, or any of the above |
//!
//! [`Bootstrap`] is the answer in memory; it reads every form ([`Bootstrap::decode`]) and writes
//! each of them. [`StartInput`] is the reading of stdin.

mod input;

pub use input::{InputError, MAX_STDIN, StartInput};

pub use containerd_shim_protos::bootstrap_api::{
    BootstrapParams, BootstrapResult, Capability, Extension, LogLevel,
};
use protobuf::Message;
use serde::{Deserialize, Serialize};

/// The newest task API version that this workspace speaks.
pub const MAX_VERSION: i32 = 3;
/// The oldest task API version that this workspace speaks.
pub const MIN_VERSION: i32 = 2;

/// Environment of a shim: containerd's ttrpc socket, where events go.
pub const ENV_TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";
/// Environment of a shim: containerd's gRPC socket.
pub const ENV_GRPC_ADDRESS: &str = "GRPC_ADDRESS";
/// Environment of a shim: the namespace, since 1.7.
pub const ENV_NAMESPACE: &str = "NAMESPACE";
/// Environment of a shim: always `2`, even where 3 is spoken. Never a basis for a decision.
pub const ENV_MAX_SHIM_VERSION: &str = "MAX_SHIM_VERSION";
/// Environment of a shim: core scheduling is wanted when not empty.
pub const ENV_SCHED_CORE: &str = "SCHED_CORE";

/// The transport a shim serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// ttrpc, the rule.
    #[default]
    Ttrpc,
    /// gRPC, for some third-party shims.
    Grpc,
}

impl Protocol {
    /// The word used on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Ttrpc => "ttrpc",
            Protocol::Grpc => "grpc",
        }
    }

    fn parse(word: &str) -> Result<Self, DecodeError> {
        if word.eq_ignore_ascii_case("ttrpc") {
            Ok(Protocol::Ttrpc)
        } else if word.eq_ignore_ascii_case("grpc") {
            Ok(Protocol::Grpc)
        } else {
            Err(DecodeError::Protocol(word.to_owned()))
        }
    }
}

/// Where a shim listens and what it speaks there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Task API version.
    pub version: i32,
    /// Address such as `unix:///run/containerd/s/…`.
    pub address: String,
    /// Transport.
    pub protocol: Protocol,
}

/// Why an answer of `start`, or a bundle's `bootstrap.json`, is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Nothing was said.
    #[error("the answer is empty")]
    Empty,
    /// Bytes that are neither protobuf, JSON nor a plain address.
    #[error("the answer is neither a bootstrap message nor an address: {0:?}")]
    Garbled(String),
    /// An answer without an address.
    #[error("the answer has no address")]
    NoAddress,
    /// An unknown transport.
    #[error("unexpected protocol: {0:?}")]
    Protocol(String),
    /// A task API this workspace does not know.
    #[error(
        "unsupported shim version: {found} (versions {MIN_VERSION} to {MAX_VERSION} are known)"
    )]
    Version {
        /// The announced version.
        found: i32,
    },
}

/// The JSON form. Order of keys and the absence of a final newline are those of containerd's own
/// file, so that either side may read or replace it.
#[derive(Serialize, Deserialize)]
struct Json {
    #[serde(default)]
    version: i32,
    #[serde(default)]
    address: String,
    #[serde(default)]
    protocol: String,
}

impl Bootstrap {
    /// An answer in today's transport.
    pub fn ttrpc(version: i32, address: impl Into<String>) -> Self {
        Self { version, address: address.into(), protocol: Protocol::Ttrpc }
    }

    /// `<protocol>+<address>`, as endpoints are written in sandbox records.
    pub fn endpoint(&self) -> String {
        format!("{}+{}", self.protocol.as_str(), self.address)
    }

    /// The protobuf answer that 2.3 and later read.
    ///
    /// # Errors
    /// When the address is too long to encode.
    pub fn to_protobuf(&self) -> protobuf::Result<Vec<u8>> {
        let mut result = BootstrapResult::new();
        result.version = self.version;
        result.address.clone_from(&self.address);
        self.protocol.as_str().clone_into(&mut result.protocol);
        result.write_to_bytes()
    }

    /// The JSON form: the answer of 2.0 to 2.2, and the content of every `bootstrap.json`.
    pub fn to_json(&self) -> String {
        // Written by hand since it cannot fail and its form is a contract.
        format!(
            r#"{{"version":{},"address":{},"protocol":"{}"}}"#,
            self.version,
            serde_json::Value::from(self.address.as_str()),
            self.protocol.as_str()
        )
    }

    /// The plain answer, which every containerd understands as task API 2.
    pub fn to_plain(&self) -> &str {
        &self.address
    }

    /// Reads an answer of any era.
    ///
    /// Protobuf is tried on the bytes as they are, since trimming could cut a message; JSON and
    /// plain addresses may have white space around them. A plain address is API 2 over ttrpc.
    ///
    /// # Errors
    /// One of [`DecodeError`]; the version is not checked, see [`Bootstrap::supported`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if let Some(result) = Self::from_protobuf(bytes)? {
            return Ok(result);
        }
        Self::from_text(bytes)
    }

    /// This answer if its version is one we speak.
    ///
    /// # Errors
    /// [`DecodeError::Version`] otherwise.
    pub fn supported(self) -> Result<Self, DecodeError> {
        if (MIN_VERSION..=MAX_VERSION).contains(&self.version) {
            Ok(self)
        } else {
            Err(DecodeError::Version { found: self.version })
        }
    }

    /// A protobuf answer, or `None` if the bytes are something else.
    fn from_protobuf(bytes: &[u8]) -> Result<Option<Self>, DecodeError> {
        let Ok(message) = BootstrapResult::parse_from_bytes(bytes) else { return Ok(None) };
        // Text may decode as unknown fields; a real answer has at least one field we know.
        if message.address.is_empty() && message.protocol.is_empty() && message.version == 0 {
            return Ok(None);
        }
        if message.address.is_empty() {
            return Err(DecodeError::NoAddress);
        }
        let protocol = Protocol::parse(&message.protocol)?;
        Ok(Some(Self { version: message.version, address: message.address, protocol }))
    }

    /// JSON or a plain address.
    fn from_text(bytes: &[u8]) -> Result<Self, DecodeError> {
        let garbled = || {
            let shown: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
            DecodeError::Garbled(shown)
        };
        let text = std::str::from_utf8(bytes).map_err(|_| garbled())?.trim();
        if text.is_empty() {
            return Err(DecodeError::Empty);
        }
        if text.starts_with('{') {
            let json: Json = serde_json::from_str(text).map_err(|_| garbled())?;
            if json.address.is_empty() {
                return Err(DecodeError::NoAddress);
            }
            let protocol = match json.protocol.as_str() {
                "" => Protocol::Ttrpc,
                word => Protocol::parse(word)?,
            };
            // JSON without a version comes from nobody we know; API 2 is what it can only mean.
            let version = if json.version == 0 { MIN_VERSION } else { json.version };
            return Ok(Self { version, address: json.address, protocol });
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(garbled());
        }
        Ok(Self::ttrpc(MIN_VERSION, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "unix:///run/containerd/s/abc";

    #[test]
    fn forms_are_byte_exact() {
        let answer = Bootstrap::ttrpc(3, ADDRESS);
        assert_eq!(
            answer.to_json(),
            r#"{"version":3,"address":"unix:///run/containerd/s/abc","protocol":"ttrpc"}"#
        );
        assert_eq!(
            answer.to_protobuf().unwrap(),
            b"\x08\x03\x12\x1cunix:///run/containerd/s/abc\x1a\x05ttrpc"
        );
        assert_eq!(answer.to_plain(), ADDRESS);
        assert_eq!(answer.endpoint(), "ttrpc+unix:///run/containerd/s/abc");
    }

    #[test]
    fn every_form_is_read_back() {
        for version in [2, 3] {
            let answer = Bootstrap::ttrpc(version, ADDRESS);
            assert_eq!(Bootstrap::decode(&answer.to_protobuf().unwrap()), Ok(answer.clone()));
            assert_eq!(Bootstrap::decode(answer.to_json().as_bytes()), Ok(answer));
        }
        let plain = Bootstrap::ttrpc(2, ADDRESS);
        for text in [ADDRESS.to_owned(), format!("{ADDRESS}\n"), format!("  {ADDRESS} \r\n")] {
            assert_eq!(Bootstrap::decode(text.as_bytes()), Ok(plain.clone()));
        }
    }

    #[test]
    fn a_message_that_ends_in_white_space_is_whole() {
        let answer = Bootstrap::ttrpc(3, ADDRESS);
        let mut bytes = answer.to_protobuf().unwrap();
        // One metadata entry whose last byte is a newline.
        bytes.extend_from_slice(b"\x2a\x06\x0a\x01k\x12\x01\n");
        assert_eq!(Bootstrap::decode(&bytes), Ok(answer));
    }

    #[test]
    fn old_and_odd_answers() {
        let read = |text: &str| Bootstrap::decode(text.as_bytes());
        assert_eq!(read("\0abstract"), Err(DecodeError::Garbled("\0abstract".into())));
        assert_eq!(read("/containerd-shim/a/b/shim.sock").unwrap().version, 2);
        assert_eq!(read(""), Err(DecodeError::Empty));
        assert_eq!(read(" \n"), Err(DecodeError::Empty));
        assert_eq!(read("{}"), Err(DecodeError::NoAddress));
        assert_eq!(read("two words"), Err(DecodeError::Garbled("two words".into())));
        assert!(matches!(read(r#"{"version":3,"addr"#), Err(DecodeError::Garbled(_))));
        let grpc = read(r#"{"version":3,"address":"/run/x","protocol":"GRPC"}"#).unwrap();
        assert_eq!(grpc.protocol, Protocol::Grpc);
        let odd = read(r#"{"version":3,"address":"/run/x","protocol":"http"}"#);
        assert_eq!(odd, Err(DecodeError::Protocol("http".into())));
        assert!(Bootstrap::decode(&[0xff; 64]).is_err());
    }

    #[test]
    fn versions_we_do_not_know_are_named() {
        for version in [-1, 0, 1, 4] {
            let error = Bootstrap::ttrpc(version, ADDRESS).supported().unwrap_err();
            assert_eq!(error, DecodeError::Version { found: version });
            assert!(error.to_string().contains(&version.to_string()));
        }
    }
}
