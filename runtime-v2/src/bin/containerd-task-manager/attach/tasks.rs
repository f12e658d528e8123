//! `containerd.task.v3.Task`, as shims serve it, for every task there is: decode, find the task,
//! one call of the library, encode.

use runtime_proto::{
    protobuf::Message,
    task::{
        CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, DeleteRequest,
        DeleteResponse, ExecProcessRequest, KillRequest, PauseRequest, PidsRequest, PidsResponse,
        ProcessInfo, ResizePtyRequest, ResumeRequest, StartRequest, StartResponse, StateRequest,
        StateResponse, StatsRequest, StatsResponse, UpdateTaskRequest, WaitRequest, WaitResponse,
    },
    ttrpc::Status,
    types::Empty,
};
use runtime_v2::{Code, ExecId, ExecOptions, ProcessId, Result, Stdio, Task};

use super::{
    call::{Call, decode, encode, not_found, status},
    place::Attached,
};

/// Serves one call; `None` if there is no such method.
pub(super) async fn serve(
    attached: &Attached,
    call: &Call,
    method: &str,
    payload: &[u8],
) -> Option<Result<Vec<u8>, Status>> {
    let at = At { attached, call, payload };
    Some(match method {
        "State" => at.task(state).await,
        "Start" => at.task(start).await,
        "Delete" => at.delete().await,
        "Pids" => at.task(pids).await,
        "Pause" => at.task(pause).await,
        "Resume" => at.task(resume).await,
        "Checkpoint" => at.task(checkpoint).await,
        "Kill" => at.task(kill).await,
        "Exec" => at.task(exec).await,
        "ResizePty" => at.task(resize_pty).await,
        "CloseIO" => at.task(close_io).await,
        "Update" => at.task(update).await,
        "Wait" => at.task(wait).await,
        "Stats" => at.task(stats).await,
        "Connect" => at.task(connect).await,
        "Create" | "Shutdown" => Err(elsewhere(method)),
        _ => return None,
    })
}

/// Tasks are made and ended by the other service, which knows what belongs to them.
fn elsewhere(method: &str) -> Status {
    Code::FailedPrecondition.status(&format!("{method} of a task is the manager's"))
}

/// A request that names its task.
trait OfTask: Message {
    fn id(&self) -> &str;
}

macro_rules! of_task {
    ($($request:ty),+ $(,)?) => {
        $(impl OfTask for $request {
            fn id(&self) -> &str {
                &self.id
            }
        })+
    };
}

of_task!(
    StateRequest,
    StartRequest,
    DeleteRequest,
    PidsRequest,
    PauseRequest,
    ResumeRequest,
    CheckpointTaskRequest,
    KillRequest,
    ExecProcessRequest,
    ResizePtyRequest,
    CloseIORequest,
    UpdateTaskRequest,
    WaitRequest,
    StatsRequest,
    ConnectRequest,
);

/// One call.
struct At<'a> {
    attached: &'a Attached,
    call: &'a Call,
    payload: &'a [u8],
}

impl At<'_> {
    async fn find(&self, id: &str) -> Result<Task, Status> {
        let key = self.call.key(id)?;
        let found = self.attached.manager.get(&key).await;
        let task = found.map_err(|_| not_found(id))?;
        Ok(match self.call.limit {
            Some(limit) => task.within(limit),
            None => task,
        })
    }

    async fn task<A, R, F>(&self, verb: fn(Task, A) -> F) -> Result<Vec<u8>, Status>
    where
        A: OfTask,
        R: Message,
        F: Future<Output = Result<R>>,
    {
        let request: A = decode(self.payload)?;
        let task = self.find(request.id()).await?;
        let answer = verb(task, request).await.map_err(|error| status(&error))?;
        encode(&answer)
    }

    async fn delete(&self) -> Result<Vec<u8>, Status> {
        let request: DeleteRequest = decode(self.payload)?;
        if request.exec_id.is_empty() {
            return Err(elsewhere("Delete"));
        }
        self.task(delete_exec).await
    }
}

/// The process that an exec id names; empty is init.
fn process(exec_id: String) -> Result<ProcessId> {
    if exec_id.is_empty() { Ok(ProcessId::Init) } else { ExecId::new(exec_id).map(ProcessId::Exec) }
}

async fn state(task: Task, request: StateRequest) -> Result<StateResponse> {
    let id = if request.exec_id.is_empty() { request.id } else { request.exec_id.clone() };
    let state = task.state(&process(request.exec_id)?).await?;
    let mut answer = StateResponse::new();
    (answer.id, answer.bundle, answer.pid) = (id, state.bundle, state.pid);
    answer.status = state.status.into();
    (answer.stdin, answer.stdout, answer.stderr) =
        (state.stdio.stdin, state.stdio.stdout, state.stdio.stderr);
    answer.terminal = state.stdio.terminal;
    if let Some(exit) = state.exit {
        answer.exit_status = exit.status;
        answer.exited_at = exit.at.into();
    }
    Ok(answer)
}

async fn start(task: Task, request: StartRequest) -> Result<StartResponse> {
    let mut answer = StartResponse::new();
    answer.pid = task.start(&process(request.exec_id)?).await?;
    Ok(answer)
}

async fn delete_exec(task: Task, request: DeleteRequest) -> Result<DeleteResponse> {
    let exit = task.delete_exec(&ExecId::new(request.exec_id)?).await?;
    let mut answer = DeleteResponse::new();
    (answer.pid, answer.exit_status) = (exit.pid, exit.status);
    answer.exited_at = exit.at.into();
    Ok(answer)
}

async fn pids(task: Task, _: PidsRequest) -> Result<PidsResponse> {
    let mut answer = PidsResponse::new();
    answer.processes = task
        .pids()
        .await?
        .into_iter()
        .map(|found| {
            let mut process = ProcessInfo::new();
            process.pid = found.pid;
            process.info = found.info.into();
            process
        })
        .collect();
    Ok(answer)
}

async fn pause(task: Task, _: PauseRequest) -> Result<Empty> {
    task.pause().await.map(|()| Empty::new())
}

async fn resume(task: Task, _: ResumeRequest) -> Result<Empty> {
    task.resume().await.map(|()| Empty::new())
}

async fn checkpoint(task: Task, request: CheckpointTaskRequest) -> Result<Empty> {
    task.checkpoint(&request.path, request.options.into_option()).await.map(|()| Empty::new())
}

async fn kill(task: Task, request: KillRequest) -> Result<Empty> {
    let process = process(request.exec_id)?;
    task.kill(&process, request.signal, request.all).await.map(|()| Empty::new())
}

async fn exec(task: Task, request: ExecProcessRequest) -> Result<Empty> {
    let id = ExecId::new(request.exec_id)?;
    let stdio = Stdio {
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
        terminal: request.terminal,
    };
    let options = ExecOptions { stdio, spec: request.spec.into_option() };
    task.exec(&id, options).await.map(|()| Empty::new())
}

async fn resize_pty(task: Task, request: ResizePtyRequest) -> Result<Empty> {
    let process = process(request.exec_id)?;
    task.resize_pty(&process, request.width, request.height).await.map(|()| Empty::new())
}

async fn close_io(task: Task, request: CloseIORequest) -> Result<Empty> {
    task.close_io(&process(request.exec_id)?).await.map(|()| Empty::new())
}

async fn update(task: Task, request: UpdateTaskRequest) -> Result<Empty> {
    task.update(request.resources.into_option(), request.annotations).await.map(|()| Empty::new())
}

async fn wait(task: Task, request: WaitRequest) -> Result<WaitResponse> {
    let exit = task.wait(&process(request.exec_id)?).await?;
    let mut answer = WaitResponse::new();
    answer.exit_status = exit.status;
    answer.exited_at = exit.at.into();
    Ok(answer)
}

async fn stats(task: Task, _: StatsRequest) -> Result<StatsResponse> {
    let mut answer = StatsResponse::new();
    answer.stats = Some(task.stats().await?).into();
    Ok(answer)
}

async fn connect(task: Task, _: ConnectRequest) -> Result<ConnectResponse> {
    let shim = task.connect().await?;
    let mut answer = ConnectResponse::new();
    (answer.shim_pid, answer.version) = (shim.shim_pid, shim.version);
    answer.task_pid = task.pid();
    Ok(answer)
}
