//! The sandbox that the shim is, if the script wants it to be one: no pause container, only the record of what containerd
//! asks of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use runtime_proto::{
    errdefs::Code,
    protos::types::platform::Platform,
    sandbox::{
        CreateSandboxRequest, CreateSandboxResponse, PingResponse, PlatformResponse,
        SandboxStatusResponse, ShutdownSandboxResponse, StartSandboxResponse, StopSandboxResponse,
        WaitSandboxResponse,
    },
    ttrpc::{Request, Status},
    types::Timestamp,
};
use tokio::sync::watch;

use crate::tasks::{Tasks, decode, encode};

/// The words that CRI knows; it takes any other for a state unknown.
const READY: &str = "SANDBOX_READY";
const NOT_READY: &str = "SANDBOX_NOTREADY";

/// The one that this process is, or none.
#[derive(Default)]
pub(crate) struct Sandbox {
    /// A plain lock: held for a look or a change.
    here: Mutex<Option<Here>>,
}

#[derive(Clone)]
struct Here {
    id: String,
    created: Timestamp,
    started: bool,
    ended: watch::Sender<Option<Timestamp>>,
}

impl Sandbox {
    /// Whether the process has to stay for it.
    pub(crate) fn is_here(&self) -> bool {
        self.here().is_some()
    }

    fn here(&self) -> MutexGuard<'_, Option<Here>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, id: &str) -> Result<Here, Status> {
        let found = self.here().clone().filter(|here| here.id == id);
        found.ok_or_else(|| Code::NotFound.status(&format!("sandbox {id}")))
    }

    pub(crate) async fn call(&self, request: &Request) -> Result<Vec<u8>, Status> {
        // The sandbox's id is the first field of them all, as a task's is.
        let id = Tasks::id_of(request);
        match request.method.as_str() {
            "CreateSandbox" => self.create(&decode(request)?),
            "StartSandbox" => self.start(&id),
            "Platform" => platform(),
            "SandboxStatus" => self.status(&id),
            "WaitSandbox" => self.wait(&id).await,
            "StopSandbox" => self.stop(&id),
            "PingSandbox" => self.of(&id).and_then(|_| encode(&PingResponse::new())),
            "ShutdownSandbox" => self.shut_down(&id),
            other => Err(Code::Unimplemented.status(other)),
        }
    }

    fn create(&self, request: &CreateSandboxRequest) -> Result<Vec<u8>, Status> {
        let mut here = self.here();
        if here.is_some() {
            return Err(Code::AlreadyExists.status(&request.sandbox_id));
        }
        *here = Some(Here {
            id: request.sandbox_id.clone(),
            created: Timestamp::now(),
            started: false,
            ended: watch::Sender::new(None),
        });
        encode(&CreateSandboxResponse::new())
    }

    /// The pid is the shim's own: its namespaces are what containers are told to join.
    fn start(&self, id: &str) -> Result<Vec<u8>, Status> {
        let here = self.of(id)?;
        self.here().as_mut().into_iter().for_each(|here| here.started = true);
        let mut answer = StartSandboxResponse::new();
        answer.pid = std::process::id();
        answer.created_at = Some(here.created).into();
        encode(&answer)
    }

    fn status(&self, id: &str) -> Result<Vec<u8>, Status> {
        let here = self.of(id)?;
        let ended = here.ended.borrow().clone();
        let ready = here.started && ended.is_none();
        let mut answer = SandboxStatusResponse::new();
        answer.sandbox_id = here.id;
        answer.pid = if ready { std::process::id() } else { 0 };
        answer.state = if ready { READY } else { NOT_READY }.into();
        (answer.created_at, answer.exited_at) = (Some(here.created).into(), ended.into());
        encode(&answer)
    }

    async fn wait(&self, id: &str) -> Result<Vec<u8>, Status> {
        let mut ended = self.of(id)?.ended.subscribe();
        let gone = |_| Code::NotFound.status("shut down while waited for");
        let at = ended.wait_for(Option::is_some).await.map_err(gone)?.clone();
        let mut answer = WaitSandboxResponse::new();
        answer.exited_at = at.into();
        encode(&answer)
    }

    fn stop(&self, id: &str) -> Result<Vec<u8>, Status> {
        self.of(id)?.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert_with(Timestamp::now);
            first
        });
        encode(&StopSandboxResponse::new())
    }

    fn shut_down(&self, id: &str) -> Result<Vec<u8>, Status> {
        self.stop(id)?;
        *self.here() = None;
        encode(&ShutdownSandboxResponse::new())
    }
}

fn platform() -> Result<Vec<u8>, Status> {
    let mut platform = Platform::new();
    platform.os = "linux".into();
    platform.architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .into();
    let mut answer = PlatformResponse::new();
    answer.platform = Some(platform).into();
    encode(&answer)
}
