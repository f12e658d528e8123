//! The task service: decode, one call, encode.
//!
//! One object answers to both names of the service, since v2 and v3 differ in nothing else.

pub mod convert;
mod subject;

use std::{pin::Pin, sync::Arc};

use protobuf::Message;
use runtime_proto::{
    any,
    errdefs::Code,
    options::CheckpointOptions,
    task::{
        CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
        CreateTaskResponse, DeleteRequest, DeleteResponse, ExecProcessRequest, KillRequest,
        PauseRequest, PidsRequest, PidsResponse, ResizePtyRequest, ResumeRequest, SERVICE_V2,
        SERVICE_V3, ShutdownRequest, StartRequest, StartResponse, StateRequest, StateResponse,
        StatsRequest, StatsResponse, UpdateTaskRequest, WaitRequest, WaitResponse,
    },
    ttrpc::Status,
    types::Empty,
};

use crate::{
    container::{Container, ProcessId, Shared},
    error::{Error, Result},
    registry::Registry,
    rpc::server::{Kind, Service},
    service::subject::Named,
};

/// What a shim serves.
#[derive(Debug)]
pub struct TaskService {
    shared: Shared,
    registry: Registry,
}

impl Service for TaskService {
    fn kind(&self, method: &str) -> Kind {
        match method {
            "Wait" => Kind::Waits,
            "State" | "Connect" | "Stats" | "Pids" => Kind::Looks,
            _ => Kind::Changes,
        }
    }

    async fn call(
        self: Arc<Self>,
        service: String,
        method: String,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, Status> {
        if service != SERVICE_V2 && service != SERVICE_V3 {
            return Err(Code::Unimplemented.status(&format!("service {service}")));
        }
        self.dispatch(&method, payload).await.map_err(|error| {
            tracing::debug!(method, %error, "call failed");
            error.kind().status(&error.to_string())
        })
    }
}

/// A call under way.
type Work<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send + 'a>>;

/// Decodes, calls, encodes. A failure names whom the call was about.
async fn answer<Q: Message + Named, A: Message>(
    payload: Vec<u8>,
    call: impl AsyncFnOnce(Q) -> Result<A>,
) -> Result<Vec<u8>> {
    // The code and the words of Go's ttrpc, as of gRPC: no caller of theirs expects a mistake of its own here.
    let request = Q::parse_from_bytes(&payload)
        .map_err(|error| Error::caused(Code::Internal, "error unmarshalling payload", error))?;
    // Decoded, it is there twice, and the call may take long.
    drop(payload);
    let subject = request.subject();
    let response = call(request).await.map_err(|error| error.within(subject))?;
    response
        .write_to_bytes()
        .map_err(|error| Error::caused(Code::Internal, "encode response", error))
}

impl TaskService {
    /// The service over these containers. When it was shut down, the registry is closed.
    pub fn new(shared: Shared, registry: Registry) -> Self {
        Self { shared, registry }
    }

    /// The work of a call, in a box of its own size: that of a Create is large, and there may be thousands of Waits.
    fn dispatch<'a>(&'a self, method: &'a str, payload: Vec<u8>) -> Work<'a> {
        match method {
            "State" => Box::pin(answer(payload, async |q| self.state(&q))),
            "Create" => Box::pin(answer(payload, async |q| self.create(q).await)),
            "Start" => Box::pin(answer(payload, async |q| self.start(q).await)),
            "Delete" => Box::pin(answer(payload, async |q| self.delete(q).await)),
            "Pids" => Box::pin(answer(payload, async |q| self.pids(q).await)),
            "Pause" => Box::pin(answer(payload, async |q| self.pause(q).await)),
            "Resume" => Box::pin(answer(payload, async |q| self.resume(q).await)),
            "Checkpoint" => Box::pin(answer(payload, async |q| self.checkpoint(q).await)),
            "Kill" => Box::pin(answer(payload, async |q| self.kill(q).await)),
            "Exec" => Box::pin(answer(payload, async |q| self.exec(q).await)),
            "ResizePty" => Box::pin(answer(payload, async |q| self.resize_pty(&q))),
            "CloseIO" => Box::pin(answer(payload, async |q| self.close_io(&q))),
            "Update" => Box::pin(answer(payload, async |q| self.update(q).await)),
            "Wait" => Box::pin(answer(payload, async |q| self.wait(q).await)),
            "Stats" => Box::pin(answer(payload, async |q| self.stats(q).await)),
            "Connect" => Box::pin(answer(payload, async |q| self.connect(&q))),
            "Shutdown" => Box::pin(answer(payload, async |q| Ok(self.shutdown(&q)))),
            unknown => Box::pin(async move {
                Err(Error::new(Code::Unimplemented, format!("method {unknown}")))
            }),
        }
    }

    fn container(&self, id: &str) -> Result<Arc<Container>> {
        self.registry.get(id)
    }

    fn state(&self, request: &StateRequest) -> Result<StateResponse> {
        let container = self.container(&request.id)?;
        let view = container.view(ProcessId::of(&request.exec_id))?;
        Ok(convert::state(&container, view))
    }

    async fn create(&self, request: CreateTaskRequest) -> Result<CreateTaskResponse> {
        self.shared.publisher.room().await;
        let request = convert::create(request)?;
        let reservation = self.registry.reserve(&request.id)?;
        let created = Container::create(&self.shared, request).await;
        let container = created.map_err(Error::of_a_part)?;
        let mut response = CreateTaskResponse::new();
        response.pid = container.pid();
        reservation.fill(container);
        Ok(response)
    }

    async fn start(&self, request: StartRequest) -> Result<StartResponse> {
        self.shared.publisher.room().await;
        let container = self.container(&request.id)?;
        let mut response = StartResponse::new();
        response.pid = match ProcessId::of(&request.exec_id) {
            ProcessId::Init => container.start().await?,
            ProcessId::Exec(id) => container.start_exec(id).await?,
        };
        Ok(response)
    }

    async fn delete(&self, request: DeleteRequest) -> Result<DeleteResponse> {
        let container = self.container(&request.id)?;
        let deleted = match ProcessId::of(&request.exec_id) {
            ProcessId::Init => container.delete(|| self.registry.remove(&request.id)).await?,
            ProcessId::Exec(id) => container.delete_exec(id).await?,
        };
        Ok(convert::deleted(deleted))
    }

    async fn pids(&self, request: PidsRequest) -> Result<PidsResponse> {
        let mut response = PidsResponse::new();
        response.processes = self.container(&request.id)?.pids().await?;
        Ok(response)
    }

    async fn pause(&self, request: PauseRequest) -> Result<Empty> {
        self.shared.publisher.room().await;
        self.container(&request.id)?.pause().await?;
        Ok(Empty::new())
    }

    async fn resume(&self, request: ResumeRequest) -> Result<Empty> {
        self.shared.publisher.room().await;
        self.container(&request.id)?.resume().await?;
        Ok(Empty::new())
    }

    async fn checkpoint(&self, request: CheckpointTaskRequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        let options = match request.options.as_ref() {
            None => CheckpointOptions::new(),
            Some(sent) if sent.type_url.is_empty() => CheckpointOptions::new(),
            Some(sent) => any::unpack(sent)
                .map_err(|error| {
                    Error::caused(Code::InvalidArgument, "undecodable checkpoint options", error)
                })?
                .ok_or_else(|| {
                    let message = format!("invalid checkpoint options of type {:?}", sent.type_url);
                    Error::new(Code::InvalidArgument, message)
                })?,
        };
        container.checkpoint(&request.path, &options).await?;
        Ok(Empty::new())
    }

    async fn kill(&self, request: KillRequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        let process = ProcessId::of(&request.exec_id);
        container.kill(process, request.signal, request.all).await?;
        Ok(Empty::new())
    }

    async fn exec(&self, request: ExecProcessRequest) -> Result<Empty> {
        self.shared.publisher.room().await;
        self.container(&request.id)?.exec(convert::exec(request)?)?;
        Ok(Empty::new())
    }

    fn resize_pty(&self, request: &ResizePtyRequest) -> Result<Empty> {
        let container = self.container(&request.id)?;
        container.resize(ProcessId::of(&request.exec_id), request.width, request.height)?;
        Ok(Empty::new())
    }

    fn close_io(&self, request: &CloseIORequest) -> Result<Empty> {
        self.container(&request.id)?.close_stdin(ProcessId::of(&request.exec_id))?;
        Ok(Empty::new())
    }

    async fn update(&self, request: UpdateTaskRequest) -> Result<Empty> {
        self.container(&request.id)?.update(request.resources.as_ref()).await?;
        Ok(Empty::new())
    }

    async fn wait(&self, request: WaitRequest) -> Result<WaitResponse> {
        let container = self.container(&request.id)?;
        let exit = container.wait(ProcessId::of(&request.exec_id))?;
        // Nothing but what is waited for is kept for as long as it takes.
        drop((container, request));
        let exit = exit.await;
        let mut response = WaitResponse::new();
        response.exit_status = exit.status;
        response.exited_at = Some(crate::publisher::timestamp(exit.at)).into();
        Ok(response)
    }

    async fn stats(&self, request: StatsRequest) -> Result<StatsResponse> {
        let mut response = StatsResponse::new();
        response.stats = Some(self.container(&request.id)?.stats().await?).into();
        Ok(response)
    }

    /// Fails for no id: managers ask this of a shim to learn whether it lives. A shim that is ending
    /// says so, for those who are about to put another container into it.
    fn connect(&self, request: &ConnectRequest) -> Result<ConnectResponse> {
        if self.registry.is_closed() {
            return Err(Error::new(Code::Unavailable, "the shim is ending"));
        }
        let mut response = ConnectResponse::new();
        response.shim_pid = std::process::id();
        response.task_pid = self.container(&request.id).map_or(0, |container| container.pid());
        Ok(response)
    }

    fn shutdown(&self, _request: &ShutdownRequest) -> Empty {
        self.registry.close_if_empty();
        Empty::new()
    }
}
