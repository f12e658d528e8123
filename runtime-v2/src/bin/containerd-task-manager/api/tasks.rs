//! `containerd.services.tasks.v1.Tasks`

use std::collections::HashMap;

use super::{Any, Descriptor, Metric, Mount, Process, ProcessInfo, Timestamp};

/// Full name of the service.
pub(crate) const SERVICE: &str = "containerd.services.tasks.v1.Tasks";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateTaskRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) rootfs: Vec<Mount>,
    #[prost(string, tag = "4")]
    pub(crate) stdin: String,
    #[prost(string, tag = "5")]
    pub(crate) stdout: String,
    #[prost(string, tag = "6")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "7")]
    pub(crate) terminal: bool,
    #[prost(message, optional, tag = "8")]
    pub(crate) checkpoint: Option<Descriptor>,
    #[prost(message, optional, tag = "9")]
    pub(crate) options: Option<Any>,
    #[prost(string, tag = "10")]
    pub(crate) runtime_path: String,
    /// Since containerd 2.3; before that, a field of the options.
    #[prost(string, tag = "11")]
    pub(crate) task_api_address: String,
    #[prost(uint32, tag = "12")]
    pub(crate) task_api_version: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CreateTaskResponse {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(uint32, tag = "2")]
    pub(crate) pid: u32,
}

/// Names a process: of Start, DeleteProcess, Get and Wait.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProcessRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

/// Names a task: of Delete, Pause, Resume and ListPids.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TaskRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StartResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) pid: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DeleteResponse {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(uint32, tag = "2")]
    pub(crate) pid: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) exited_at: Option<Timestamp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) process: Option<Process>,
}

/// Its filter is ignored, as containerd does.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListTasksRequest {
    #[prost(string, tag = "1")]
    pub(crate) filter: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListTasksResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) tasks: Vec<Process>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KillRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) signal: u32,
    #[prost(bool, tag = "4")]
    pub(crate) all: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ExecProcessRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) stdin: String,
    #[prost(string, tag = "3")]
    pub(crate) stdout: String,
    #[prost(string, tag = "4")]
    pub(crate) stderr: String,
    #[prost(bool, tag = "5")]
    pub(crate) terminal: bool,
    #[prost(message, optional, tag = "6")]
    pub(crate) spec: Option<Any>,
    #[prost(string, tag = "7")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResizePtyRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint32, tag = "3")]
    pub(crate) width: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) height: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CloseIoRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(bool, tag = "3")]
    pub(crate) stdin: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPidsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) processes: Vec<ProcessInfo>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckpointTaskRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) options: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckpointTaskResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UpdateTaskRequest {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resources: Option<Any>,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) annotations: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetricsRequest {
    #[prost(string, repeated, tag = "1")]
    pub(crate) filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WaitResponse {
    #[prost(uint32, tag = "1")]
    pub(crate) exit_status: u32,
    #[prost(message, optional, tag = "2")]
    pub(crate) exited_at: Option<Timestamp>,
}
