//! `containerd.services.introspection.v1.Introspection`, as far as it tells of runtimes.

use super::Any;

pub(crate) const PLUGIN_INFO: &str =
    "/containerd.services.introspection.v1.Introspection/PluginInfo";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PluginInfoRequest {
    #[prost(string, tag = "1")]
    pub(crate) r#type: String,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) options: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PluginInfoResponse {
    /// The record of the plugin, which goes on unread.
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(crate) plugin: Option<Vec<u8>>,
    #[prost(message, optional, tag = "2")]
    pub(crate) extra: Option<Any>,
}

/// `containerd.types.RuntimeRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RuntimeRequest {
    #[prost(string, tag = "1")]
    pub(crate) runtime_path: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) options: Option<Any>,
}
