//! What `start` answers.

use std::path::PathBuf;

use containerd_shim_protos::bootstrap_api::BootstrapResult;
use containerd_shim_protos::protobuf::Message;

use crate::failure::{Context, Result};
use crate::task::{V2, V3};

/// The answer to `start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The form it came in.
    pub form: Form,
    /// The task API's version, 2 where the form has none.
    pub version: i32,
    /// Where the shim listens.
    pub address: String,
    /// `ttrpc`.
    pub protocol: String,
}

/// The three forms of the answer to `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The address alone.
    Plain,
    /// A JSON object.
    Json,
    /// A protobuf message.
    Protobuf,
}

impl Started {
    /// Reads an answer in any of its forms.
    ///
    /// # Errors
    /// When it has none of them.
    pub fn read(answer: &[u8]) -> Result<Self> {
        if answer.starts_with(b"unix://") || answer.starts_with(b"/") {
            let address = String::from_utf8_lossy(answer).into_owned();
            return Ok(Self {
                form: Form::Plain,
                version: 2,
                address,
                protocol: "ttrpc".to_owned(),
            });
        }
        if answer.starts_with(b"{") {
            let json: serde_json::Value = serde_json::from_slice(answer)?;
            let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
            let version = json["version"].as_i64().and_then(|version| version.try_into().ok());
            return Ok(Self {
                form: Form::Json,
                version: version.unwrap_or_default(),
                address: text("address"),
                protocol: text("protocol"),
            });
        }
        let message = BootstrapResult::parse_from_bytes(answer)
            .context(format!("reading the answer {:?}", String::from_utf8_lossy(answer)))?;
        Ok(Self {
            form: Form::Protobuf,
            version: message.version,
            address: message.address,
            protocol: message.protocol,
        })
    }

    /// The task service that this version stands for.
    #[must_use]
    pub fn service(&self) -> &'static str {
        if self.version >= 3 { V3 } else { V2 }
    }

    /// The socket's file.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(self.address.trim_start_matches("unix://"))
    }
}
