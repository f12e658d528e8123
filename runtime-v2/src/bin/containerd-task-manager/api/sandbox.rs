//! `containerd.services.sandbox.v1.Store`, as far as it tells whether there is a sandbox.

pub(crate) const GET: &str = "/containerd.services.sandbox.v1.Store/Get";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StoreGetRequest {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
}

/// That there is an answer is all that matters.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StoreGetResponse {}
