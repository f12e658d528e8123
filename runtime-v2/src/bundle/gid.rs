//! The host group of a container's root, for containers in a user namespace.

use runtime_proto::{any, types::Any};
use serde_json::Value;

/// The group that group 0 of the container is on the host, if it is another one.
///
/// Clients send all kinds of specs; one that cannot be read has no mapping, and the OCI runtime
/// is who complains about it.
pub(super) fn of_container_root(spec: &Any) -> Option<u32> {
    if !any::is(spec, any::OCI_SPEC) {
        return None;
    }
    let spec: Value = serde_json::from_slice(&spec.value).ok()?;
    let mappings = spec.get("linux")?.get("gidMappings")?.as_array()?;
    let maps_root = |mapping: &&Value| {
        mapping.get("containerID").and_then(Value::as_u64).unwrap_or(0) == 0
            && mapping.get("size").and_then(Value::as_u64).unwrap_or(0) > 0
    };
    let host = mappings.iter().find(maps_root)?.get("hostID")?.as_u64()?;
    u32::try_from(host).ok().filter(|gid| *gid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(spec: &str) -> Option<u32> {
        of_container_root(&any::raw(any::OCI_SPEC, spec.into()))
    }

    #[test]
    fn root_is_found_wherever_it_is_mapped() {
        let mapped = r#"{"linux":{"gidMappings":[
            {"containerID":1,"hostID":5,"size":9},{"containerID":0,"hostID":1000,"size":1}]}}"#;
        assert_eq!(gid(mapped), Some(1000));
        assert_eq!(of_container_root(&any::raw("other", mapped.into())), None);
    }

    #[test]
    fn specs_without_a_usable_mapping_have_none() {
        for odd in [
            "",
            "null",
            "{}",
            "[]",
            "7",
            r#"{"linux":null}"#,
            r#"{"linux":{}}"#,
            r#"{"linux":{"gidMappings":[]}}"#,
            r#"{"linux":{"gidMappings":[null]}}"#,
            r#"{"linux":{"gidMappings":[{"containerID":0,"hostID":-1,"size":1}]}}"#,
            r#"{"linux":{"gidMappings":[{"containerID":0,"hostID":99999999999,"size":1}]}}"#,
            r#"{"linux":{"gidMappings":[{"containerID":0,"hostID":7,"size":0}]}}"#,
            r#"{"linux":{"gidMappings":[{"containerID":0,"hostID":0,"size":1}]}}"#,
        ] {
            assert_eq!(gid(odd), None, "{odd}");
        }
    }
}
