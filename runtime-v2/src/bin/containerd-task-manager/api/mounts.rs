//! `containerd.services.mounts.v1.Mounts`, since containerd 2.2.

use std::collections::HashMap;

use super::Mount;

pub(crate) const ACTIVATE: &str = "/containerd.services.mounts.v1.Mounts/Activate";
pub(crate) const DEACTIVATE: &str = "/containerd.services.mounts.v1.Mounts/Deactivate";
pub(crate) const INFO: &str = "/containerd.services.mounts.v1.Mounts/Info";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ActivateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) labels: HashMap<String, String>,
}

/// Of Deactivate and Info.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NameRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Of Activate and Info.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ActivationResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) info: Option<ActivationInfo>,
}

/// `containerd.types.ActivationInfo`, as far as it tells what is left to mount.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ActivationInfo {
    #[prost(message, repeated, tag = "3")]
    pub(crate) system: Vec<Mount>,
}
