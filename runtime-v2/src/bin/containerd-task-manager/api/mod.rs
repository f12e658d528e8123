//! The gRPC messages this daemon reads and writes, by containerd's numbers; all others pass
//! through unread.
//!
//! They are written here, and not taken from a crate, because what is published generates the
//! clients of all of containerd's services at build time with `protoc`, has no server side, and
//! lacks the mounts service as well as the newer fields of `CreateTaskRequest`. These are few.

pub(crate) mod containers;
pub(crate) mod content;
pub(crate) mod events;
pub(crate) mod introspection;
pub(crate) mod mounts;
pub(crate) mod sandbox;
pub(crate) mod tasks;

use std::collections::HashMap;

pub(crate) use prost_types::{Any, Timestamp};

/// `containerd.types.Mount`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) r#type: String,
    #[prost(string, tag = "2")]
    pub(crate) source: String,
    #[prost(string, tag = "3")]
    pub(crate) target: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) options: Vec<String>,
}

/// `containerd.types.Descriptor`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Descriptor {
    #[prost(string, tag = "1")]
    pub(crate) media_type: String,
    #[prost(string, tag = "2")]
    pub(crate) digest: String,
    #[prost(int64, tag = "3")]
    pub(crate) size: i64,
    #[prost(map = "string, string", tag = "5")]
    pub(crate) annotations: HashMap<String, String>,
}

/// `containerd.types.Metric`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Metric {
    #[prost(message, optional, tag = "1")]
    pub(crate) timestamp: Option<Timestamp>,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) data: Option<Any>,
}

/// `containerd.v1.types.Process`; its field 1, the container, is never set.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Process {
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) pid: u32,
    #[prost(enumeration = "Status", tag = "4")]
    pub(crate) status: i32,
    #[prost(string, tag = "5")]
    pub(crate) stdin: String,
    #[prost(string, tag = "6")]
    pub(crate) stdout: String,
    #[prost(string, tag = "7")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "8")]
    pub(crate) terminal: bool,
    #[prost(uint32, tag = "9")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "10")]
    pub(crate) exited_at: Option<Timestamp>,
}

/// `containerd.v1.types.Status`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Status {
    Unknown = 0,
    Created = 1,
    Running = 2,
    Stopped = 3,
    Paused = 4,
    Pausing = 5,
}

/// `containerd.v1.types.ProcessInfo`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessInfo {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) info: Option<Any>,
}
