//! Kill.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Container, ProcessId, SIGKILL, lock};
use crate::{
    cgroup::FreezerState,
    error::{Error, Result},
    process::state::{InitState, Verb},
    runc::error::of_kill,
    threads,
};
use runtime_proto::errdefs::Code;

/// How long the runtime may take to send a signal. It takes seconds for all of a large container. What clients give up
/// must come to an end here, too: they ask again, and each time another runtime would be left.
const RUNTIME: Duration = Duration::from_secs(30);

impl Container {
    /// Sends a signal to a process, or (`all`, init only) to every process of the container. Does
    /// not wait for the effect.
    ///
    /// # Errors
    /// NotFound when the process is unknown or has ended, FailedPrecondition when it has not begun.
    pub async fn kill(&self, process: ProcessId<'_>, signal: u32, all: bool) -> Result<()> {
        match process {
            ProcessId::Exec(id) => {
                let exec = self.exec_process(id)?;
                let snapshot = exec.snapshot();
                if snapshot.pid == 0 {
                    return Err(Error::new(Code::FailedPrecondition, "process not created"));
                }
                if snapshot.exit.is_some() {
                    return Err(Error::new(Code::NotFound, "process already finished"));
                }
                exec.signal(signal)
            }
            ProcessId::Init => self.kill_init(signal, all).await,
        }
    }

    async fn kill_init(&self, signal: u32, all: bool) -> Result<()> {
        let state = self.init.snapshot().state;
        if state == InitState::CreatedFromCheckpoint {
            // As the runtime would say, which knows nothing of it yet. Who deletes by force goes on then.
            return Err(Error::new(Code::NotFound, "no such container"));
        }
        state.allows(Verb::Kill)?;
        if state == InitState::Stopped && !all {
            return Err(Error::new(Code::NotFound, "process already finished"));
        }
        match timeout(RUNTIME, self.runc.kill(&self.id, signal, all)).await {
            Ok(sent) => sent.map_err(of_kill)?,
            // An init that is gone takes all others with it, sooner or later.
            Err(_) if signal == SIGKILL => self.init.signal(signal)?,
            Err(_) => {
                let message = "failed to send the signal: the runtime does not come to an end";
                return Err(Error::new(Code::DeadlineExceeded, message));
            }
        }
        if signal == SIGKILL {
            self.thaw().await;
        }
        Ok(())
    }

    /// On cgroup v1 a frozen process does not even die.
    pub(super) async fn thaw(&self) {
        let Some(cgroup) = lock(&self.cgroup).as_ref().map(Arc::clone) else { return };
        let thaw = move || match cgroup.freezer_state() {
            Ok(FreezerState::Thawed) => Ok(()),
            Ok(_) => cgroup.thaw(),
            Err(error) => Err(error),
        };
        match threads::run_or_do_here(thaw).await {
            Ok(()) => {}
            // It has died meanwhile.
            Err(error) if error.kind() == Code::NotFound => {}
            Err(error) => tracing::warn!(id = self.id, %error, "a killed container stays frozen"),
        }
    }
}
