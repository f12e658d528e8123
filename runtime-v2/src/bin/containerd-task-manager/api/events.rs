//! `containerd.services.events.v1.Events`

use super::{Any, Timestamp};

pub(crate) const FORWARD: &str = "/containerd.services.events.v1.Events/Forward";
pub(crate) const SUBSCRIBE: &str = "/containerd.services.events.v1.Events/Subscribe";

/// `containerd.types.Envelope`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub(crate) timestamp: Option<Timestamp>,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(string, tag = "3")]
    pub(crate) topic: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) event: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ForwardRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) envelope: Option<Envelope>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) filters: Vec<String>,
}
