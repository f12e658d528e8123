//! Tasks that run nothing: the task service over a map.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    events::{TaskCreate, TaskDelete, TaskExit, TaskStart},
    task::{
        ConnectResponse, CreateTaskRequest, CreateTaskResponse, DeleteResponse, ExecProcessRequest,
        KillRequest, PidsResponse, ProcessInfo, StartResponse, StateRequest, StateResponse,
        Status as State, WaitResponse,
    },
    ttrpc::{Request, Status},
    types::{Empty, Timestamp},
};
use tokio::sync::watch;

use crate::{
    Args,
    events::Publisher,
    script::{Script, Tells},
};

/// Beyond what the kernel gives out, so that no real process is ever meant.
const FIRST_PID: u32 = 0x4000_0000;

pub(crate) struct Tasks {
    map: Mutex<HashMap<String, Process>>,
    next_pid: AtomicU32,
    publisher: Arc<Publisher>,
}

#[derive(Clone)]
struct Process {
    pid: u32,
    state: State,
    bundle: String,
    exit: watch::Sender<Option<u32>>,
}

/// The map's key of an exec.
fn name(id: &str, exec: &str) -> String {
    if exec.is_empty() { id.to_owned() } else { format!("{id}/{exec}") }
}

impl Tasks {
    pub(crate) fn new(args: Args) -> Self {
        let base = FIRST_PID + (std::process::id() << 8);
        let publisher = Arc::new(Publisher::new(args.namespace));
        Self { map: Mutex::default(), next_pid: AtomicU32::new(base), publisher }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    /// The container of any request: they all have it first.
    pub(crate) fn id_of(request: &Request) -> String {
        StateRequest::parse_from_bytes(&request.payload)
            .map(|request| request.id)
            .unwrap_or_default()
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Process>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self, name: &str) -> Result<Process, Status> {
        let found = self.map().get(name).cloned();
        found.ok_or_else(|| Code::NotFound.status(&format!("process {name}")))
    }

    fn add(&self, name: String, bundle: String) -> Result<Process, Status> {
        let mut map = self.map();
        if map.contains_key(&name) {
            return Err(Code::AlreadyExists.status(&name));
        }
        let pid = self.next_pid.fetch_add(1, Ordering::Relaxed);
        let process =
            Process { pid, state: State::CREATED, bundle, exit: watch::Sender::new(None) };
        map.insert(name, process.clone());
        Ok(process)
    }

    fn set(&self, name: &str, state: State) {
        if let Some(process) = self.map().get_mut(name) {
            process.state = state;
        }
    }

    pub(crate) async fn call(&self, request: &Request, script: &Script) -> Result<Vec<u8>, Status> {
        match request.method.as_str() {
            "Create" => self.create(&decode(request)?).await,
            "Start" => self.start(&decode(request)?).await,
            "State" => self.state(&decode(request)?),
            "Kill" => self.kill(&decode(request)?, script.tells).await,
            "Wait" => self.wait(&decode(request)?).await,
            "Delete" => self.delete(&decode(request)?, script.tells).await,
            "Exec" => self.exec(&decode(request)?),
            "Pids" => self.pids(&decode(request)?),
            "Connect" => self.connect(&decode(request)?),
            "Shutdown" => encode(&Empty::new()),
            "ResizePty" | "CloseIO" | "Pause" | "Resume" | "Checkpoint" | "Update" | "Stats" => {
                self.process(&Self::id_of(request))?;
                encode(&Empty::new())
            }
            other => Err(Code::Unimplemented.status(other)),
        }
    }

    async fn create(&self, request: &CreateTaskRequest) -> Result<Vec<u8>, Status> {
        if request.rootfs.iter().any(|mount| mount.type_ == "special") {
            return Err(Code::InvalidArgument.status("no shim can make such a mount"));
        }
        let process = self.add(request.id.clone(), request.bundle.clone())?;
        let mut event = TaskCreate::new();
        (event.container_id, event.pid) = (request.id.clone(), process.pid);
        self.publisher.publish(&event).await;
        let mut answer = CreateTaskResponse::new();
        answer.pid = process.pid;
        encode(&answer)
    }

    async fn start(&self, request: &StateRequest) -> Result<Vec<u8>, Status> {
        let name = name(&request.id, &request.exec_id);
        let process = self.process(&name)?;
        if process.state != State::CREATED {
            return Err(Code::FailedPrecondition.status("not created"));
        }
        self.set(&name, State::RUNNING);
        let mut event = TaskStart::new();
        (event.container_id, event.pid) = (request.id.clone(), process.pid);
        self.publisher.publish(&event).await;
        let mut answer = StartResponse::new();
        answer.pid = process.pid;
        encode(&answer)
    }

    fn state(&self, request: &StateRequest) -> Result<Vec<u8>, Status> {
        let process = self.process(&name(&request.id, &request.exec_id))?;
        let mut answer = StateResponse::new();
        (answer.id, answer.bundle) = (request.id.clone(), process.bundle);
        (answer.pid, answer.status) = (process.pid, process.state.into());
        let exit = *process.exit.borrow();
        answer.exit_status = exit.unwrap_or(0);
        answer.exited_at = exit.map(|_| Timestamp::now()).into();
        encode(&answer)
    }

    /// The signal is the end: 128 and its number, as the kernel has it.
    async fn kill(&self, request: &KillRequest, tells: Tells) -> Result<Vec<u8>, Status> {
        let name = name(&request.id, &request.exec_id);
        let process = self.process(&name)?;
        if process.state == State::STOPPED {
            return Err(Code::NotFound.status("process already finished"));
        }
        self.set(&name, State::STOPPED);
        let (pid, status) = (process.pid, 128 + request.signal);
        process.exit.send_replace(Some(status));
        if tells == Tells::AtOnce {
            let process = if request.exec_id.is_empty() { &request.id } else { &request.exec_id };
            self.publisher.publish(&exit_of(&request.id, process, pid, status)).await;
        }
        encode(&Empty::new())
    }

    /// Tells the end of a task whose deletion is about to be answered.
    async fn tell_end(&self, exit: Option<TaskExit>, deletion: TaskDelete, tells: Tells) {
        let (delay, deletion) = match tells {
            Tells::Never => return,
            Tells::BothLate(millis) => (millis, Some(deletion)),
            Tells::AtOnce => return self.publisher.publish(&deletion).await,
            Tells::ExitLast(millis) => {
                self.publisher.publish(&deletion).await;
                (millis, None)
            }
        };
        let (publisher, delay) = (Arc::clone(&self.publisher), Duration::from_millis(delay));
        tokio::spawn(async move {
            if let Some(deletion) = deletion {
                publisher.publish_later(&deletion, delay).await;
            }
            if let Some(exit) = exit {
                publisher.publish_later(&exit, delay).await;
            }
        });
    }

    async fn wait(&self, request: &StateRequest) -> Result<Vec<u8>, Status> {
        let process = self.process(&name(&request.id, &request.exec_id))?;
        let mut exit = process.exit.subscribe();
        let gone = |_| Code::NotFound.status("deleted while waited for");
        let status = *exit.wait_for(Option::is_some).await.map_err(gone)?;
        let mut answer = WaitResponse::new();
        answer.exit_status = status.unwrap_or(255);
        answer.exited_at = Some(Timestamp::now()).into();
        encode(&answer)
    }

    async fn delete(&self, request: &StateRequest, tells: Tells) -> Result<Vec<u8>, Status> {
        let name = name(&request.id, &request.exec_id);
        let process = {
            let mut map = self.map();
            match map.get(&name).map(|process| process.state) {
                None => return Err(Code::NotFound.status(&format!("container {name}"))),
                Some(State::RUNNING) => {
                    return Err(Code::FailedPrecondition.status("cannot delete a running process"));
                }
                Some(_) => {}
            }
            let prefix = format!("{name}/");
            map.retain(|other, _| !other.starts_with(&prefix));
            map.remove(&name)
        };
        let Some(process) = process else { return Err(Code::NotFound.status(&name)) };
        let ended = *process.exit.borrow();
        let status = ended.unwrap_or(0);
        if request.exec_id.is_empty() {
            let mut event = TaskDelete::new();
            event.container_id.clone_from(&request.id);
            (event.pid, event.exit_status) = (process.pid, status);
            let exit = ended.map(|status| exit_of(&request.id, &request.id, process.pid, status));
            self.tell_end(exit, event, tells).await;
        }
        let mut answer = DeleteResponse::new();
        (answer.pid, answer.exit_status) = (process.pid, status);
        answer.exited_at = ended.map(|_| Timestamp::now()).into();
        encode(&answer)
    }

    fn exec(&self, request: &ExecProcessRequest) -> Result<Vec<u8>, Status> {
        let bundle = self.process(&request.id)?.bundle;
        self.add(name(&request.id, &request.exec_id), bundle)?;
        encode(&Empty::new())
    }

    fn pids(&self, request: &StateRequest) -> Result<Vec<u8>, Status> {
        let process = self.process(&request.id)?;
        let mut answer = PidsResponse::new();
        if process.state != State::STOPPED {
            let mut info = ProcessInfo::new();
            info.pid = process.pid;
            answer.processes.push(info);
        }
        encode(&answer)
    }

    /// Never fails, as Go's.
    fn connect(&self, request: &StateRequest) -> Result<Vec<u8>, Status> {
        let mut answer = ConnectResponse::new();
        answer.shim_pid = std::process::id();
        answer.task_pid = self.process(&request.id).map(|process| process.pid).unwrap_or(0);
        encode(&answer)
    }
}

fn exit_of(container: &str, process: &str, pid: u32, status: u32) -> TaskExit {
    let mut event = TaskExit::new();
    (event.container_id, event.id) = (container.to_owned(), process.to_owned());
    (event.pid, event.exit_status) = (pid, status);
    event.exited_at = Some(Timestamp::now()).into();
    event
}

/// `StateRequest` stands in for every request of an id and an exec id.
pub(crate) fn decode<M: Message>(request: &Request) -> Result<M, Status> {
    M::parse_from_bytes(&request.payload)
        .map_err(|error| Code::InvalidArgument.status(&error.to_string()))
}

pub(crate) fn encode<M: Message>(message: &M) -> Result<Vec<u8>, Status> {
    message.write_to_bytes().map_err(|error| Code::Internal.status(&error.to_string()))
}
