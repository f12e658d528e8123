//! Refusing, before anything is started, what the OCI runtime cannot do.
//!
//! A runtime that does not know id-mapped mounts ignores the mapping, and the container would see
//! files of the wrong owner; so such a spec needs a runtime that says it can.
//! (containerd core/runtime/v2/task_manager.go.)

use runtime_proto::{any, errdefs::Code, types::Any};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    id::Key,
    shim_binary::ShimBinary,
};

/// Checks the features that `spec` needs against those that the runtime announces.
///
/// # Errors
/// `FailedPrecondition` if one is missing; the shim's own error if it cannot say.
pub(crate) async fn check(
    key: &Key,
    spec: Option<&Any>,
    binary: &ShimBinary<'_>,
    options: Option<&Any>,
) -> Result<()> {
    if !spec.is_some_and(wants_idmap) {
        return Ok(());
    }
    let info = binary
        .info(options)
        .await
        .map_err(|error| error.within(format!("ask for the features that {key} needs")))?;
    if has_idmap(info.features.as_ref()) {
        return Ok(());
    }
    Err(Error::new(
        Code::FailedPrecondition,
        format!("{key} has id-mapped mounts, which its OCI runtime does not support"),
    ))
}

fn wants_idmap(spec: &Any) -> bool {
    if !any::is(spec, any::OCI_SPEC) {
        return false;
    }
    // What cannot be read is for the OCI runtime to complain about.
    let Ok(spec) = serde_json::from_slice::<Value>(&spec.value) else { return false };
    let mounts = spec.get("mounts").and_then(Value::as_array);
    mounts.into_iter().flatten().any(|mount| {
        let list = |name| mount.get(name).and_then(Value::as_array).into_iter().flatten();
        list("uidMappings").next().is_some()
            || list("gidMappings").next().is_some()
            || list("options").any(|option| matches!(option.as_str(), Some("idmap" | "ridmap")))
    })
}

/// Features of a type nobody knows may well hold this one.
fn has_idmap(features: Option<&Any>) -> bool {
    let Some(features) = features else { return false };
    if !any::is(features, any::OCI_FEATURES) {
        return true;
    }
    serde_json::from_slice::<Value>(&features.value).is_ok_and(|json| {
        json.pointer("/linux/mountExtensions/idmap/enabled") == Some(&Value::Bool(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_specs_with_mapped_mounts_want_anything() {
        let wants = |json: &str| wants_idmap(&any::raw(any::OCI_SPEC, json.into()));
        for plain in [
            "",
            "null",
            "{}",
            r#"{"mounts":null}"#,
            r#"{"mounts":[{},null,7]}"#,
            r#"{"mounts":[{"options":["bind","ro"],"uidMappings":[]}]}"#,
        ] {
            assert!(!wants(plain), "{plain}");
        }
        for mapped in [
            r#"{"mounts":[{},{"options":["idmap"]}]}"#,
            r#"{"mounts":[{"options":["bind","ridmap"]}]}"#,
            r#"{"mounts":[{"uidMappings":[{"size":1}]}]}"#,
            r#"{"mounts":[{"gidMappings":[{"size":1}]}]}"#,
        ] {
            assert!(wants(mapped), "{mapped}");
        }
    }

    #[test]
    fn silence_is_no_support_and_an_unknown_language_may_be() {
        let features = |json: &str| any::raw(any::OCI_FEATURES, json.into());
        let enabled = r#"{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}"#;
        assert!(has_idmap(Some(&features(enabled))));
        assert!(has_idmap(Some(&any::raw("vendor/features", Vec::new()))));
        assert!(!has_idmap(None));
        for lacking in
            ["", "{}", &enabled.replace("true", "false"), &enabled.replace("true", "null")]
        {
            assert!(!has_idmap(Some(&features(lacking))), "{lacking}");
        }
    }
}
