//! A client of a shim's task service, on the published ttrpc crate: independent of the code it tests.
//!
//! `containerd.task.v2.Task` and `containerd.task.v3.Task` have the same messages; the service is a parameter.

mod error;

use std::fmt;
use std::time::Duration;

use containerd_shim_protos::api;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{EnumOrUnknown, Message, MessageField};
use ttrpc::asynchronous::Client;
use ttrpc::proto::{KeyValue, Request};

use crate::bundle::Bundle;
use crate::deadline::HANG;
use crate::stdio::Stdio;

pub use error::CallError;

pub use containerd_shim_protos::api::{
    ConnectResponse, DeleteResponse, PidsResponse, StateResponse, StatsResponse, Status,
    WaitResponse,
};

/// The task service of containerd 1.6 and 1.7.
pub const V2: &str = "containerd.task.v2.Task";
/// The task service of containerd 2.0 and later.
pub const V3: &str = "containerd.task.v3.Task";

/// Metadata by which a namespace travels on ttrpc.
const NAMESPACE: &str = "containerd-namespace-ttrpc";

/// The result of a call.
pub type Answer<T> = Result<T, CallError>;

/// One connection to a shim.
#[derive(Clone)]
pub struct TaskClient {
    client: Client,
    service: String,
    namespace: String,
}

impl fmt::Debug for TaskClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskClient").field("service", &self.service).finish_non_exhaustive()
    }
}

impl TaskClient {
    /// Connects to an address as `start` answers it.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn connect(address: &str, service: &str, namespace: &str) -> Answer<Self> {
        let client = Client::connect(address).await?;
        Ok(Self { client, service: service.to_owned(), namespace: namespace.to_owned() })
    }

    /// The same connection, speaking another service.
    #[must_use]
    pub fn speaking(&self, service: &str) -> Self {
        Self { service: service.to_owned(), ..self.clone() }
    }

    /// Any call, with a deadline that both sides know.
    ///
    /// # Errors
    /// What the shim or the connection says.
    pub async fn call<R: Message>(
        &self,
        method: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Answer<R> {
        let mut namespace = KeyValue::new();
        namespace.key = NAMESPACE.to_owned();
        namespace.value.clone_from(&self.namespace);
        let bytes =
            request.write_to_bytes().map_err(|error| CallError::Client(error.to_string()))?;
        let mut envelope = Request::new();
        envelope.service.clone_from(&self.service);
        envelope.method = method.to_owned();
        envelope.payload = bytes;
        envelope.timeout_nano = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        envelope.metadata = vec![namespace];
        let answer = self.client.request(envelope).await.map_err(CallError::from);
        let response = answer.map_err(|error| match error {
            CallError::Client(text) => CallError::Client(format!("{method}: {text}")),
            other => other,
        })?;
        R::parse_from_bytes(&response.payload).map_err(|error| CallError::Client(error.to_string()))
    }

    async fn empty(&self, method: &str, request: &impl Message) -> Answer<()> {
        self.call::<api::Empty>(method, request, HANG).await.map(drop)
    }

    /// Creates the container of a bundle; gives the pid.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn create(&self, bundle: &Bundle, stdio: &Stdio) -> Answer<u32> {
        self.create_with(bundle, stdio, None).await
    }

    /// Creates a container with runtime options.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn create_with(
        &self,
        bundle: &Bundle,
        stdio: &Stdio,
        options: Option<Any>,
    ) -> Answer<u32> {
        let mut request = create_request(bundle, stdio);
        request.options = MessageField::from_option(options);
        self.call::<api::CreateTaskResponse>("Create", &request, HANG)
            .await
            .map(|answer| answer.pid)
    }

    /// Starts init, or with an exec id that exec; gives the pid.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn start(&self, id: &str, exec: &str) -> Answer<u32> {
        let mut request = api::StartRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        self.call::<api::StartResponse>("Start", &request, HANG).await.map(|answer| answer.pid)
    }

    /// Adds an exec of an OCI process, not started yet.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn exec(
        &self,
        id: &str,
        exec: &str,
        process: &serde_json::Value,
        stdio: &Stdio,
    ) -> Answer<()> {
        let mut spec = Any::new();
        spec.type_url = "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned();
        spec.value = process.to_string().into_bytes();
        let mut request = api::ExecProcessRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        request.terminal = stdio.terminal;
        request.stdin.clone_from(&stdio.stdin);
        request.stdout.clone_from(&stdio.stdout);
        request.stderr.clone_from(&stdio.stderr);
        request.spec = MessageField::some(spec);
        self.empty("Exec", &request).await
    }

    /// The state of init or an exec.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn state(&self, id: &str, exec: &str) -> Answer<StateResponse> {
        let mut request = api::StateRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        self.call("State", &request, HANG).await
    }

    /// The status alone.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn status(&self, id: &str, exec: &str) -> Answer<EnumOrUnknown<Status>> {
        self.state(id, exec).await.map(|state| state.status)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn kill(&self, id: &str, exec: &str, signal: u32) -> Answer<()> {
        self.kill_with(id, exec, signal, false).await
    }

    /// Sends a signal, to all processes of the container if `all`.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn kill_with(&self, id: &str, exec: &str, signal: u32, all: bool) -> Answer<()> {
        let mut request = api::KillRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        request.signal = signal;
        request.all = all;
        self.empty("Kill", &request).await
    }

    /// Waits for the end of init or an exec.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn wait(&self, id: &str, exec: &str) -> Answer<WaitResponse> {
        self.wait_for(id, exec, HANG).await
    }

    /// Waits with a limit of one's own.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn wait_for(&self, id: &str, exec: &str, limit: Duration) -> Answer<WaitResponse> {
        let mut request = api::WaitRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        self.call("Wait", &request, limit).await
    }

    /// Deletes init with its container, or an exec.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn delete(&self, id: &str, exec: &str) -> Answer<DeleteResponse> {
        let mut request = api::DeleteRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        self.call("Delete", &request, HANG).await
    }

    /// Processes of the container.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn pids(&self, id: &str) -> Answer<PidsResponse> {
        let mut request = api::PidsRequest::new();
        request.id = id.to_owned();
        self.call("Pids", &request, HANG).await
    }

    /// Freezes the container.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn pause(&self, id: &str) -> Answer<()> {
        let mut request = api::PauseRequest::new();
        request.id = id.to_owned();
        self.empty("Pause", &request).await
    }

    /// Thaws the container.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn resume(&self, id: &str) -> Answer<()> {
        let mut request = api::ResumeRequest::new();
        request.id = id.to_owned();
        self.empty("Resume", &request).await
    }

    /// Closes stdin.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn close_io(&self, id: &str, exec: &str) -> Answer<()> {
        let mut request = api::CloseIORequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        request.stdin = true;
        self.empty("CloseIO", &request).await
    }

    /// Sets the size of the terminal.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn resize(&self, id: &str, exec: &str, width: u32, height: u32) -> Answer<()> {
        let mut request = api::ResizePtyRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        request.width = width;
        request.height = height;
        self.empty("ResizePty", &request).await
    }

    /// Sets resources, in the OCI's JSON.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn update(&self, id: &str, resources: &serde_json::Value) -> Answer<()> {
        let mut any = Any::new();
        any.type_url =
            "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".to_owned();
        any.value = resources.to_string().into_bytes();
        let mut request = api::UpdateTaskRequest::new();
        request.id = id.to_owned();
        request.resources = MessageField::some(any);
        self.empty("Update", &request).await
    }

    /// Dumps the container below `path`, with CRIU options or without any.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn checkpoint(&self, id: &str, path: &str, options: Option<Any>) -> Answer<()> {
        let mut request = api::CheckpointTaskRequest::new();
        request.id = id.to_owned();
        request.path = path.to_owned();
        request.options = MessageField::from_option(options);
        self.empty("Checkpoint", &request).await
    }

    /// Metrics of the container's cgroup, packed.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn stats(&self, id: &str) -> Answer<StatsResponse> {
        let mut request = api::StatsRequest::new();
        request.id = id.to_owned();
        self.call("Stats", &request, HANG).await
    }

    /// Who serves and what runs.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn connect_task(&self, id: &str) -> Answer<ConnectResponse> {
        let mut request = api::ConnectRequest::new();
        request.id = id.to_owned();
        self.call("Connect", &request, HANG).await
    }

    /// Asks the shim to end, which it does once it has no container.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn shutdown(&self, id: &str) -> Answer<()> {
        let mut request = api::ShutdownRequest::new();
        request.id = id.to_owned();
        self.empty("Shutdown", &request).await
    }
}

/// A Create request for a bundle, to be changed further by tests that need it odd.
#[must_use]
pub fn create_request(bundle: &Bundle, stdio: &Stdio) -> api::CreateTaskRequest {
    let mut request = api::CreateTaskRequest::new();
    request.id.clone_from(&bundle.id);
    request.bundle = bundle.path();
    request.rootfs = bundle.mounts();
    request.terminal = stdio.terminal;
    request.stdin.clone_from(&stdio.stdin);
    request.stdout.clone_from(&stdio.stdout);
    request.stderr.clone_from(&stdio.stderr);
    request
}
