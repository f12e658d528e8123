//! The verbs: each is one call to the shim.

use std::{collections::HashMap, time::Duration};

use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    task::{
        CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, DeleteRequest,
        DeleteResponse, ExecProcessRequest, KillRequest, PauseRequest, PidsRequest, PidsResponse,
        ResizePtyRequest, ResumeRequest, StartRequest, StartResponse, StateRequest, StateResponse,
        StatsRequest, StatsResponse, Status, UpdateTaskRequest, WaitRequest, WaitResponse,
    },
    types::{Any, Empty, Timestamp},
};

use super::{Exit, ProcessId, ProcessInfo, ProcessState, Stdio, Task};
use crate::{
    error::{self, Error, Result},
    id::ExecId,
    shim::Shim,
};

/// containerd's own `io.containerd.timeout.task.state`: answered from the shim's memory.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);

/// Answered from cgroup files, or by an OCI runtime that lists processes.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// One run of an OCI runtime, on a node that is short of everything.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(120);

/// Writing the memory of a large container to a slow disk.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3600);

/// For the clean-up behind a dead shim, which itself is bounded, to tell the exit it found.
const LOST_TIMEOUT: Duration = Duration::from_secs(60);

/// Go's zero time, which shims send for "not yet" (seconds since 1970 of the year 1).
const GO_ZERO_SECONDS: i64 = -62_135_596_800;

/// What to run by [`Task::exec`].
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// Its streams.
    pub stdio: Stdio,
    /// JSON of an OCI process.
    pub spec: Option<Any>,
}

/// What a shim says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// Its process.
    pub shim_pid: u32,
    /// What it calls its version; most say nothing.
    pub version: String,
}

impl Task {
    async fn ask<A: Message, R: Message>(
        &self,
        method: &'static str,
        request: &A,
        limit: Duration,
    ) -> Result<R> {
        let limit = self.limit.unwrap_or(limit);
        self.entry.shim.call(method, request, Some(limit)).await
    }

    fn id(&self) -> String {
        self.key().id.to_string()
    }

    /// State of a process. A task whose shim has gone is not found.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    pub async fn state(&self, process: &ProcessId) -> Result<ProcessState> {
        state(&self.entry.shim, process, self.limit.unwrap_or(STATE_TIMEOUT)).await
    }

    /// Starts a created process and gives its pid.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn start(&self, process: &ProcessId) -> Result<u32> {
        let mut request = StartRequest::new();
        (request.id, request.exec_id) = (self.id(), process.wire());
        let answer: StartResponse = self.ask("Start", &request, RUNTIME_TIMEOUT).await?;
        if *process == ProcessId::Init {
            self.entry.learn_pid(answer.pid);
        }
        Ok(answer.pid)
    }

    /// Sends a signal to a process, or to all in the container.
    ///
    /// # Errors
    /// `NotFound` if it has ended.
    pub async fn kill(&self, process: &ProcessId, signal: u32, all: bool) -> Result<()> {
        let mut request = KillRequest::new();
        (request.id, request.exec_id) = (self.id(), process.wire());
        (request.signal, request.all) = (signal, all);
        self.ask::<_, Empty>("Kill", &request, RUNTIME_TIMEOUT).await.map(drop)
    }

    /// Waits for the end of a process, however long that takes unless [`Task::within`] says so.
    /// If its shim dies, this gives the exit that was published in its place.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    pub async fn wait(&self, process: &ProcessId) -> Result<Exit> {
        let mut request = WaitRequest::new();
        (request.id, request.exec_id) = (self.id(), process.wire());
        let waited: Result<WaitResponse> = self.entry.shim.call("Wait", &request, self.limit).await;
        match waited {
            Ok(answer) => Ok(Exit {
                pid: if *process == ProcessId::Init { self.pid() } else { 0 },
                status: answer.exit_status,
                at: instant(answer.exited_at.into_option()),
            }),
            Err(error) if error::is_closed(&error) => {
                let limit = self.limit.unwrap_or(LOST_TIMEOUT);
                let lost = tokio::time::timeout(limit, self.entry.ended()).await;
                lost.ok().flatten().ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a process; it is run by [`Task::start`].
    ///
    /// # Errors
    /// `AlreadyExists` if the id is in use.
    pub async fn exec(&self, id: &ExecId, options: ExecOptions) -> Result<()> {
        let mut request = ExecProcessRequest::new();
        (request.id, request.exec_id) = (self.id(), id.to_string());
        let Stdio { stdin, stdout, stderr, terminal } = options.stdio;
        (request.stdin, request.stdout, request.stderr) = (stdin, stdout, stderr);
        request.terminal = terminal;
        request.spec = options.spec.into();
        self.ask::<_, Empty>("Exec", &request, RUNTIME_TIMEOUT).await.map(drop)
    }

    /// Removes a process of an exec that has ended, or was never started.
    ///
    /// # Errors
    /// Those of the shim; it refuses for one that runs.
    pub async fn delete_exec(&self, id: &ExecId) -> Result<Exit> {
        let mut request = DeleteRequest::new();
        (request.id, request.exec_id) = (self.id(), id.to_string());
        let answer: DeleteResponse = self.ask("Delete", &request, RUNTIME_TIMEOUT).await?;
        Ok(exit(answer))
    }

    /// Sets the size of a process's terminal.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn resize_pty(&self, process: &ProcessId, width: u32, height: u32) -> Result<()> {
        let mut request = ResizePtyRequest::new();
        (request.id, request.exec_id) = (self.id(), process.wire());
        (request.width, request.height) = (width, height);
        self.ask::<_, Empty>("ResizePty", &request, LOOK_TIMEOUT).await.map(drop)
    }

    /// Ends the input of a process.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn close_io(&self, process: &ProcessId) -> Result<()> {
        let mut request = CloseIORequest::new();
        (request.id, request.exec_id, request.stdin) = (self.id(), process.wire(), true);
        self.ask::<_, Empty>("CloseIO", &request, LOOK_TIMEOUT).await.map(drop)
    }

    /// Freezes all processes.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn pause(&self) -> Result<()> {
        let mut request = PauseRequest::new();
        request.id = self.id();
        self.ask::<_, Empty>("Pause", &request, RUNTIME_TIMEOUT).await.map(drop)
    }

    /// Thaws them.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn resume(&self) -> Result<()> {
        let mut request = ResumeRequest::new();
        request.id = self.id();
        self.ask::<_, Empty>("Resume", &request, RUNTIME_TIMEOUT).await.map(drop)
    }

    /// Who serves this task.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn connect(&self) -> Result<Connected> {
        let mut request = ConnectRequest::new();
        request.id = self.id();
        let answer: ConnectResponse = self.ask("Connect", &request, STATE_TIMEOUT).await?;
        self.entry.learn_pid(answer.task_pid);
        Ok(Connected { shim_pid: answer.shim_pid, version: answer.version })
    }

    /// All processes in the container.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn pids(&self) -> Result<Vec<ProcessInfo>> {
        pids(&self.entry.shim, self.limit.unwrap_or(LOOK_TIMEOUT)).await
    }

    /// Writes a checkpoint to `path`.
    ///
    /// # Errors
    /// Those of the shim.
    pub async fn checkpoint(&self, path: &str, options: Option<Any>) -> Result<()> {
        let mut request = CheckpointTaskRequest::new();
        (request.id, request.path) = (self.id(), path.to_owned());
        request.options = options.into();
        self.ask::<_, Empty>("Checkpoint", &request, CHECKPOINT_TIMEOUT).await.map(drop)
    }

    /// Changes resource limits: JSON of OCI Linux resources.
    ///
    /// # Errors
    /// `InvalidArgument` without resources; those of the shim.
    pub async fn update(
        &self,
        resources: Option<Any>,
        annotations: HashMap<String, String>,
    ) -> Result<()> {
        if resources.is_none() {
            let text = format!("Update of {}: no resources", self.key());
            return Err(Error::new(Code::InvalidArgument, text));
        }
        let mut request = UpdateTaskRequest::new();
        (request.id, request.annotations) = (self.id(), annotations);
        request.resources = resources.into();
        self.ask::<_, Empty>("Update", &request, RUNTIME_TIMEOUT).await.map(drop)
    }

    /// Metrics of the container.
    ///
    /// # Errors
    /// `NotFound` if it has none.
    pub async fn stats(&self) -> Result<Any> {
        let mut request = StatsRequest::new();
        request.id = self.id();
        let answer: StatsResponse = self.ask("Stats", &request, LOOK_TIMEOUT).await?;
        answer.stats.into_option().ok_or_else(|| {
            Error::new(Code::NotFound, format!("Stats of {}: the shim has none", self.key()))
        })
    }
}

/// State of a process in a shim.
pub(crate) async fn state(
    shim: &Shim,
    process: &ProcessId,
    limit: Duration,
) -> Result<ProcessState> {
    let mut request = StateRequest::new();
    (request.id, request.exec_id) = (shim.key().id.to_string(), process.wire());
    let asked: Result<StateResponse> = shim.call("State", &request, Some(limit)).await;
    let answer = asked.map_err(|error| {
        // As containerd: what cannot be asked any more is not there any more.
        if error::is_closed(&error) { error.with_kind(Code::NotFound) } else { error }
    })?;
    let at = instant(answer.exited_at.into_option());
    let status = answer.status.enum_value_or_default();
    let ended = status == Status::STOPPED;
    Ok(ProcessState {
        pid: answer.pid,
        status,
        stdio: Stdio {
            stdin: answer.stdin,
            stdout: answer.stdout,
            stderr: answer.stderr,
            terminal: answer.terminal,
        },
        bundle: answer.bundle,
        exit: ended.then_some(Exit { pid: answer.pid, status: answer.exit_status, at }),
    })
}

/// All processes of the container in a shim.
pub(crate) async fn pids(shim: &Shim, limit: Duration) -> Result<Vec<ProcessInfo>> {
    let mut request = PidsRequest::new();
    request.id = shim.key().id.to_string();
    let answer: PidsResponse = shim.call("Pids", &request, Some(limit)).await?;
    let info = |process: runtime_proto::task::ProcessInfo| ProcessInfo {
        pid: process.pid,
        info: process.info.into_option(),
    };
    Ok(answer.processes.into_iter().map(info).collect())
}

/// An exit as shims and their `delete` tell it.
pub(crate) fn exit(answer: DeleteResponse) -> Exit {
    let at = instant(answer.exited_at.into_option());
    Exit { pid: answer.pid, status: answer.exit_status, at }
}

fn instant(at: Option<Timestamp>) -> Option<Timestamp> {
    at.filter(|at| at.seconds != GO_ZERO_SECONDS)
}
