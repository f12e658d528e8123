//! Packing and unpacking of `google.protobuf.Any` by containerd's type URL rules.
//!
//! containerd's typeurl writes the bare full name of a protobuf message and protobuf bytes; Go
//! structs registered with it (the OCI types) get a path-like URL and JSON bytes. Readers accept
//! any `prefix/` before the name.

use protobuf::Message;

use crate::types::Any;

/// A message whose full protobuf name is known without reflection.
pub trait Named: Message {
    /// Full name, such as `containerd.events.TaskExit`.
    const FULL_NAME: &'static str;
}

/// Implements [`Named`] for a list of messages.
macro_rules! named {
    ($($message:ty => $name:literal),* $(,)?) => {
        $(impl $crate::any::Named for $message { const FULL_NAME: &'static str = $name; })*
    };
}
pub(crate) use named;

named! {
    crate::metrics::v1::Metrics => "io.containerd.cgroups.v1.Metrics",
    crate::metrics::v2::Metrics => "io.containerd.cgroups.v2.Metrics",
    crate::types::RuntimeInfo => "containerd.types.RuntimeInfo",
}

/// JSON of an OCI runtime spec.
pub const OCI_SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// JSON of an OCI process.
pub const OCI_PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// JSON of OCI Linux resources.
pub const OCI_LINUX_RESOURCES: &str =
    "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";
/// JSON of the features an OCI runtime reports.
pub const OCI_FEATURES: &str =
    "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// Packs a message under its bare full name.
///
/// # Errors
/// When the message cannot be encoded (it is larger than 2 GiB).
pub fn pack<M: Named>(message: &M) -> protobuf::Result<Any> {
    Ok(raw(M::FULL_NAME, message.write_to_bytes()?))
}

/// An `Any` with these parts.
pub fn raw(type_url: &str, value: Vec<u8>) -> Any {
    let mut any = Any::new();
    type_url.clone_into(&mut any.type_url);
    any.value = value;
    any
}

/// Whether `any` holds the type of this full name, whatever the prefix of its URL.
pub fn is(any: &Any, name: &str) -> bool {
    any.type_url == name
        || any.type_url.strip_suffix(name).is_some_and(|prefix| prefix.ends_with('/'))
}

/// Unpacks a message, or `None` if `any` holds another type.
///
/// # Errors
/// When the bytes are not such a message.
pub fn unpack<M: Named>(any: &Any) -> protobuf::Result<Option<M>> {
    if is(any, M::FULL_NAME) { M::parse_from_bytes(&any.value).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::TaskOOM;

    #[test]
    fn events_are_packed_under_their_bare_name() {
        let mut event = TaskOOM::new();
        event.container_id = "c1".into();
        let any = pack(&event).unwrap();
        assert_eq!(any.type_url, "containerd.events.TaskOOM");
        assert_eq!(any.value, b"\x0a\x02c1");
    }

    #[test]
    fn any_prefix_is_accepted_and_other_types_are_not() {
        for url in ["containerd.events.TaskOOM", "types.example/containerd.events.TaskOOM"] {
            let event: Option<TaskOOM> = unpack(&raw(url, b"\x0a\x02c1".to_vec())).unwrap();
            assert_eq!(event.unwrap().container_id, "c1");
        }
        for url in ["", "xcontainerd.events.TaskOOM", "containerd.events.TaskExit"] {
            let event: Option<TaskOOM> = unpack(&raw(url, Vec::new())).unwrap();
            assert!(event.is_none());
        }
        assert!(unpack::<TaskOOM>(&raw(TaskOOM::FULL_NAME, vec![0xff])).is_err());
    }
}
