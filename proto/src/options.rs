//! What a client may tell the runc shim, in every form it arrives.
//!
//! ctr and CRI send [`Options`] when the runtime is named `io.containerd.runc.v2`; under any other
//! name CRI sends [`RuntimeOptions`] whose body is the TOML table of its configuration. The keys
//! there are the Go field names (`SystemdCgroup`), while the file `options.json` in a bundle uses
//! the protobuf names (`systemd_cgroup`).

use containerd_shim_protos::shim::oci;
use protobuf::{CodedInputStream, Message};
use serde::{Deserialize, Serialize};

use crate::any::{self, Named, named};
use crate::types::Any;

named! {
    oci::Options => "containerd.runc.v1.Options",
    oci::CheckpointOptions => "containerd.runc.v1.CheckpointOptions",
    oci::ProcessDetails => "containerd.runc.v1.ProcessDetails",
}

pub use oci::{CheckpointOptions, Options as OptionsMessage, ProcessDetails};

/// Options of the runc shim, as they stand in a bundle's `options.json` (zero values left out).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Do not use pivot_root.
    #[serde(skip_serializing_if = "is_default")]
    pub no_pivot_root: bool,
    /// Do not make a session keyring.
    #[serde(skip_serializing_if = "is_default")]
    pub no_new_keyring: bool,
    /// The cgroup that the shim itself joins.
    #[serde(skip_serializing_if = "is_default")]
    pub shim_cgroup: String,
    /// Owner of the pipes, on the host.
    #[serde(skip_serializing_if = "is_default")]
    pub io_uid: u32,
    /// Group of the pipes, on the host.
    #[serde(skip_serializing_if = "is_default")]
    pub io_gid: u32,
    /// The OCI runtime: a name looked up in PATH, or a path. Empty: `runc`.
    #[serde(skip_serializing_if = "is_default")]
    pub binary_name: String,
    /// Directory of the OCI runtime's state. Empty: the default.
    #[serde(skip_serializing_if = "is_default")]
    pub root: String,
    /// The criu binary; only containerd 1.6 sends it.
    #[serde(skip_serializing_if = "is_default")]
    pub criu_path: String,
    /// Cgroups are made through systemd.
    #[serde(skip_serializing_if = "is_default")]
    pub systemd_cgroup: bool,
    /// Directory of the checkpoint image to restore from.
    #[serde(skip_serializing_if = "is_default")]
    pub criu_image_path: String,
    /// Directory for criu's own files.
    #[serde(skip_serializing_if = "is_default")]
    pub criu_work_path: String,
    /// Where the sandbox's task API is.
    #[serde(skip_serializing_if = "is_default")]
    pub task_api_address: String,
    /// Version of the sandbox's task API.
    #[serde(skip_serializing_if = "is_default")]
    pub task_api_version: u32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The generic options message of CRI for runtimes it does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Type of the body.
    pub type_url: String,
    /// A file with the configuration.
    pub config_path: String,
    /// The configuration itself, TOML for CRI.
    pub config_body: Vec<u8>,
}

impl RuntimeOptions {
    /// Full name of the message, as containerd 1.7 and later send it.
    pub const NAME: &'static str = "runtimeoptions.v1.Options";
    /// The name that containerd 1.6 uses.
    pub const OLD_NAME: &'static str = "cri.runtimeoptions.v1.Options";

    /// Reads the message.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn decode(bytes: &[u8]) -> protobuf::Result<Self> {
        let mut message = Self::default();
        let mut input = CodedInputStream::from_bytes(bytes);
        while let Some(tag) = input.read_raw_tag_or_eof()? {
            match tag {
                0x0a => message.type_url = input.read_string()?,
                0x12 => message.config_path = input.read_string()?,
                0x1a => message.config_body = input.read_bytes()?,
                other => protobuf::rt::skip_field_for_tag(other, &mut input)?,
            }
        }
        Ok(message)
    }
}

/// Which options a client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// None, or an `Any` without a value.
    Default,
    /// The shim's own.
    Runc(Options),
    /// CRI's generic ones; reading the TOML body is the shim's business.
    Generic(RuntimeOptions),
}

/// Why sent options are not usable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A message of another type.
    #[error("type with url {0:?} is not known as options of this runtime")]
    Type(String),
    /// Bytes that are not what the type URL says.
    #[error("options of type {type_url} cannot be decoded")]
    Garbled {
        /// The type URL.
        type_url: String,
        /// Why.
        source: protobuf::Error,
    },
}

impl Sent {
    /// Reads the options of a request.
    ///
    /// # Errors
    /// [`Error`] for types this shim does not know and bytes that do not decode.
    pub fn decode(any: Option<&Any>) -> Result<Self, Error> {
        let Some(any) = any.filter(|any| !any.type_url.is_empty() || !any.value.is_empty()) else {
            return Ok(Sent::Default);
        };
        let garbled = |source| Error::Garbled { type_url: any.type_url.clone(), source };
        if any::is(any, oci::Options::FULL_NAME) {
            return if any.value.is_empty() {
                Ok(Sent::Default)
            } else {
                Options::decode(&any.value).map(Sent::Runc).map_err(garbled)
            };
        }
        if any::is(any, RuntimeOptions::NAME) || any::is(any, RuntimeOptions::OLD_NAME) {
            return RuntimeOptions::decode(&any.value).map(Sent::Generic).map_err(garbled);
        }
        // `ctr sandboxes` and embedders without wishes send an Empty.
        if any::is(any, "google.protobuf.Empty") {
            return Ok(Sent::Default);
        }
        Err(Error::Type(any.type_url.clone()))
    }
}

/// Field of the criu path, which newer definitions of the message have reserved.
const CRIU_PATH_FIELD: u32 = 8;

impl Options {
    /// Reads the protobuf message.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn decode(bytes: &[u8]) -> protobuf::Result<Self> {
        let mut message = oci::Options::parse_from_bytes(bytes)?;
        let criu_path = string_field(message.special_fields.unknown_fields(), CRIU_PATH_FIELD);
        Ok(Self {
            no_pivot_root: message.no_pivot_root,
            no_new_keyring: message.no_new_keyring,
            shim_cgroup: message.take_shim_cgroup(),
            io_uid: message.io_uid,
            io_gid: message.io_gid,
            binary_name: message.take_binary_name(),
            root: message.take_root(),
            criu_path,
            systemd_cgroup: message.systemd_cgroup,
            criu_image_path: message.take_criu_image_path(),
            criu_work_path: message.take_criu_work_path(),
            task_api_address: message.take_task_api_address(),
            task_api_version: message.task_api_version,
        })
    }
}

/// A string that arrives in a field which the published definition does not have.
pub fn string_field(fields: &protobuf::UnknownFields, number: u32) -> String {
    let text = fields.iter().find_map(|(found, value)| match value {
        protobuf::UnknownValueRef::LengthDelimited(bytes) if found == number => {
            std::str::from_utf8(bytes).ok()
        }
        _ => None,
    });
    text.unwrap_or_default().to_owned()
}

/// Field of the path of the parent checkpoint in [`CheckpointOptions`], known since containerd 2.4.
pub const CHECKPOINT_PARENT_PATH_FIELD: u32 = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_are_read_and_written_as_in_a_bundle() {
        let mut message = oci::Options::new();
        message.binary_name = "crun".into();
        message.root = "/run/x".into();
        message.systemd_cgroup = true;
        message.io_uid = 1000;
        let mut bytes = message.write_to_bytes().unwrap();
        bytes.extend_from_slice(b"\x42\x04criu");
        let options = Options::decode(&bytes).unwrap();
        assert_eq!(options.criu_path, "criu");
        let json = serde_json::to_string(&options).unwrap();
        assert_eq!(
            json,
            r#"{"io_uid":1000,"binary_name":"crun","root":"/run/x","criu_path":"criu","systemd_cgroup":true}"#
        );
        assert_eq!(serde_json::from_str::<Options>(&json).unwrap(), options);
        assert_eq!(serde_json::to_string(&Options::default()).unwrap(), "{}");
    }

    #[test]
    fn the_forms_in_which_options_are_sent() {
        let sent = |url: &str, value: &[u8]| Sent::decode(Some(&any::raw(url, value.to_vec())));
        assert_eq!(Sent::decode(None).unwrap(), Sent::Default);
        assert_eq!(sent("", b"").unwrap(), Sent::Default);
        assert_eq!(sent("containerd.runc.v1.Options", b"").unwrap(), Sent::Default);
        assert_eq!(sent("google.protobuf.Empty", b"").unwrap(), Sent::Default);
        let Sent::Runc(options) = sent("x/containerd.runc.v1.Options", b"\x32\x04crun").unwrap()
        else {
            panic!("not read as the shim's own options");
        };
        assert_eq!(options.binary_name, "crun");
        let generic = sent("runtimeoptions.v1.Options", b"\x0a\x01t\x12\x01p\x1a\x03a=1").unwrap();
        assert_eq!(
            generic,
            Sent::Generic(RuntimeOptions {
                type_url: "t".into(),
                config_path: "p".into(),
                config_body: b"a=1".to_vec(),
            })
        );
        let unknown = sent("some.Other", b"").unwrap_err().to_string();
        assert!(unknown.contains("some.Other"), "{unknown}");
        assert!(matches!(sent("containerd.runc.v1.Options", &[0xff]), Err(Error::Garbled { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = RuntimeOptions::decode(&bytes);
            let _ = Options::decode(&bytes);
        }
    }
}
