//! A container: its init, its execs, and what is done to them.
//!
//! * `create`, `start`, `exec`, `signal`, `freeze`, `resources`, `checkpoint`,
//!   `delete`: the verbs.
//! * `watch`: what happens when a process ends.
//!
//! Every change of a process takes its `op` lock for the length of one call of the OCI runtime.
//! No lock is shared between containers, nor between the execs of one.

mod checkpoint;
mod create;
mod delete;
pub(crate) mod exec;
mod freeze;
pub(crate) mod resources;
mod signal;
mod start;
mod watch;

pub use create::CreateRequest;
pub use delete::Deleted;
pub use exec::ExecRequest;

use std::{
    collections::HashMap,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex},
};

use runtime_proto::{errdefs::Code, task::Status};
use tokio::sync::Notify;

use crate::{
    cgroup::Cgroup,
    error::{Error, Result},
    exits::Ledger,
    io::Size,
    process::{
        Process, Snapshot, Stdio, lock,
        state::{ExecState, InitState},
    },
    publisher::Publisher,
    reaper::{Exit, Reaper},
    runc::{Runc, options::RuncOptions},
};

/// SIGKILL, as calls of the runtime and requests of clients number it.
const SIGKILL: u32 = 9;

/// What all containers of a shim share. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shared {
    /// containerd's namespace.
    pub namespace: Arc<str>,
    /// Who waits for processes.
    pub reaper: Reaper,
    /// Where events go.
    pub publisher: Publisher,
}

/// A container that the OCI runtime has made.
#[derive(Debug)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its bundle.
    pub bundle: PathBuf,
    shared: Shared,
    options: RuncOptions,
    runc: Runc,
    init: Process<InitState>,
    /// The checkpoint that Start restores.
    checkpoint: Option<PathBuf>,
    /// The kernel does not end the container's other processes with its init.
    outlives_init: bool,
    // The maps below are locked for a look or a change, never over an await.
    execs: Mutex<HashMap<String, Arc<Process<ExecState>>>>,
    exec_specs: Mutex<HashMap<String, Vec<u8>>>,
    ledger: Mutex<Ledger>,
    ledger_changed: Notify,
    cgroup: Mutex<Option<Arc<Cgroup>>>,
}

/// One of the processes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessId<'a> {
    /// The first one.
    Init,
    /// One that was put in later.
    Exec(&'a str),
}

impl<'a> ProcessId<'a> {
    /// From a request, where an empty exec id means init.
    pub fn of(exec_id: &'a str) -> Self {
        if exec_id.is_empty() { ProcessId::Init } else { ProcessId::Exec(exec_id) }
    }
}

/// What State reports.
#[derive(Debug, Clone)]
pub struct View {
    /// Id of the process.
    pub id: String,
    /// Its streams.
    pub stdio: Stdio,
    /// Its state for clients.
    pub status: Status,
    /// Its pid.
    pub pid: u32,
    /// How it ended.
    pub exit: Option<Exit>,
}

impl Container {
    /// The pid of init; 0 before a restore.
    pub fn pid(&self) -> u32 {
        self.init.snapshot().pid
    }

    /// What can be seen of a process.
    ///
    /// # Errors
    /// NotFound for an unknown exec.
    pub fn view(&self, process: ProcessId<'_>) -> Result<View> {
        match process {
            ProcessId::Init => {
                let Snapshot { state, pid, exit } = self.init.snapshot();
                let exit = exit.filter(|_| state.status() == Status::STOPPED);
                Ok(view(&self.init, state.status(), pid, exit))
            }
            ProcessId::Exec(id) => {
                let exec = self.exec_process(id)?;
                let Snapshot { state, pid, exit } = exec.snapshot();
                let init = self.init.snapshot().state;
                // A frozen container's execs are frozen with it.
                let status = match (state, init) {
                    (ExecState::Running, InitState::Paused | InitState::Pausing) => init.status(),
                    (state, _) => state.status(),
                };
                let exit = exit.filter(|_| status == Status::STOPPED);
                Ok(view(&exec, status, pid, exit))
            }
        }
    }

    /// Waits for the end of a process, and keeps nothing else of it.
    ///
    /// # Errors
    /// NotFound for an unknown exec.
    pub fn wait(
        &self,
        process: ProcessId<'_>,
    ) -> Result<Pin<Box<dyn Future<Output = Exit> + Send>>> {
        Ok(match process {
            ProcessId::Init => Box::pin(self.init.exited()),
            ProcessId::Exec(id) => Box::pin(self.exec_process(id)?.exited()),
        })
    }

    /// Changes the size of a process's terminal; nothing without one.
    ///
    /// # Errors
    /// NotFound for an unknown exec, FailedPrecondition for one that has ended, and for an init whose terminal has;
    /// InvalidArgument for a size that no terminal can have, whether there is one or not.
    pub fn resize(&self, process: ProcessId<'_>, width: u32, height: u32) -> Result<()> {
        use crate::process::state::Verb;
        let io = match process {
            // containerd's shims ask an exec for its state, and an init for its terminal only.
            ProcessId::Init if !self.init.stdio.terminal => None,
            ProcessId::Init => {
                self.init.snapshot().state.allows(Verb::Resize)?;
                self.init.io()
            }
            ProcessId::Exec(id) => {
                let exec = self.exec_process(id)?;
                exec.snapshot().state.allows(Verb::Resize)?;
                exec.io()
            }
        };
        let size = Size::of(width, height)?;
        io.map_or(Ok(()), |io| io.resize(size))
    }

    /// Lets a process see the end of its input once it has read what is there.
    ///
    /// # Errors
    /// NotFound for an unknown exec.
    pub fn close_stdin(&self, process: ProcessId<'_>) -> Result<()> {
        let io = match process {
            ProcessId::Init => self.init.io(),
            ProcessId::Exec(id) => self.exec_process(id)?.io(),
        };
        if let Some(io) = io {
            io.close_stdin();
        }
        Ok(())
    }

    /// Logs what there is of this container, for somebody who looks for a fault.
    pub fn report(&self) {
        let Snapshot { state, pid, exit } = self.init.snapshot();
        let execs: Vec<_> = lock(&self.execs).values().map(|exec| exec.snapshot().state).collect();
        tracing::info!(id = self.id, ?state, pid, ?exit, ?execs, "container");
    }

    fn exec_process(&self, id: &str) -> Result<Arc<Process<ExecState>>> {
        lock(&self.execs)
            .get(id)
            .cloned()
            .ok_or_else(|| Error::new(Code::NotFound, format!("process does not exist {id}")))
    }

    fn exec_pid_file(&self, id: &str) -> PathBuf {
        // Not `<id>.pid`: the pid file of an exec that is called "init" would be that of init.
        self.bundle.join(format!("{id}.exec.pid"))
    }
}

fn view<S: Copy>(process: &Process<S>, status: Status, pid: u32, exit: Option<Exit>) -> View {
    View { id: process.id.clone(), stdio: process.stdio.clone(), status, pid, exit }
}
