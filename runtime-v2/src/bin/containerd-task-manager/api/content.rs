//! `containerd.services.content.v1.Content`, as far as checkpoints need it.

pub(crate) const READ: &str = "/containerd.services.content.v1.Content/Read";
pub(crate) const WRITE: &str = "/containerd.services.content.v1.Content/Write";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReadContentRequest {
    #[prost(string, tag = "1")]
    pub(crate) digest: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ReadContentResponse {
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) data: Vec<u8>,
}

/// What a message on a write stream asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum WriteAction {
    Stat = 0,
    Write = 1,
    Commit = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WriteContentRequest {
    #[prost(enumeration = "WriteAction", tag = "1")]
    pub(crate) action: i32,
    #[prost(string, tag = "2")]
    pub(crate) r#ref: String,
    #[prost(int64, tag = "5")]
    pub(crate) offset: i64,
    #[prost(bytes = "vec", tag = "6")]
    pub(crate) data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WriteContentResponse {
    #[prost(enumeration = "WriteAction", tag = "1")]
    pub(crate) action: i32,
    #[prost(int64, tag = "4")]
    pub(crate) offset: i64,
    #[prost(string, tag = "6")]
    pub(crate) digest: String,
}
