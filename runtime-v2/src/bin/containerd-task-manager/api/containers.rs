//! `containerd.services.containers.v1.Containers`, as far as a task needs it.

use super::Any;

pub(crate) const GET: &str = "/containerd.services.containers.v1.Containers/Get";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetContainerRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) container: Option<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) runtime: Option<Runtime>,
    #[prost(message, optional, tag = "5")]
    pub(crate) spec: Option<Any>,
    #[prost(string, tag = "11")]
    pub(crate) sandbox: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Runtime {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) options: Option<Any>,
}
