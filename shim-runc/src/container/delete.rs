//! Delete of the container or of an exec.

use std::{sync::Arc, time::Duration};

use runtime_proto::{errdefs::Code, events::TaskDelete};
use tokio::time::timeout;

use super::{Container, SIGKILL, lock};
use crate::{
    error::{Error, Result},
    mount,
    process::{
        Process, Snapshot,
        state::{ExecEvent, ExecState, InitEvent, InitState, Verb},
    },
    reaper::Exit,
    threads,
};

/// How long output that nobody reads may hold up a delete. Clients read it to its end before they
/// delete; containerd's own shims wait as long.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the runtime may take to delete what has ended, hooks that run then included.
const RUNTIME: Duration = Duration::from_secs(120);
/// How long the runtime may take to kill a container that was never started, and how long that may take to be gone then.
const DEATH: Duration = Duration::from_secs(10);
/// How long unmounting the rootfs may take. What is written to it is written to its disk first, which may be slow; but
/// one whose server is dead takes for ever.
const UNMOUNT: Duration = Duration::from_secs(10);

/// What was deleted.
#[derive(Debug, Clone, Copy)]
pub struct Deleted {
    /// Its pid; 0 if it never had one.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
}

impl Container {
    /// Removes an exec that has ended or was never started.
    ///
    /// # Errors
    /// NotFound for an unknown exec, FailedPrecondition for a running one.
    pub async fn delete_exec(&self, id: &str) -> Result<Deleted> {
        let exec = self.exec_process(id)?;
        let _op = exec.op.lock().await;
        exec.snapshot().state.allows(Verb::Delete)?;
        drain(&exec).await;
        exec.close_io().await;
        let _ = std::fs::remove_file(self.exec_pid_file(id));
        lock(&self.exec_specs).remove(id);
        let Snapshot { pid, exit, .. } = exec.snapshot();
        let exit = exit.unwrap_or_else(Exit::never);
        exec.update(|exec| {
            exec.state = exec.state.after(ExecEvent::Deleted);
            exec.exit = Some(exit);
        });
        lock(&self.execs).remove(id);
        Ok(Deleted { pid, exit })
    }

    /// Removes the container. `forget` is called when it is gone, and before anybody else can
    /// see that.
    ///
    /// # Errors
    /// FailedPrecondition while it runs, NotFound when it was deleted; what the runtime says, or
    /// that the rootfs could not be unmounted. It can be called again then.
    pub async fn delete(&self, forget: impl FnOnce()) -> Result<Deleted> {
        let _op = self.init.op.lock().await;
        let state = self.init.snapshot().state;
        state.allows(Verb::Delete)?;
        if state == InitState::Created {
            self.end_unstarted().await;
        }
        drain(&self.init).await;
        let deleted = timeout(RUNTIME, self.runc.delete(&self.id, false)).await;
        let deleted = deleted.unwrap_or_else(|_| {
            let message = "failed to delete task: the runtime does not come to an end";
            Err(Error::new(Code::DeadlineExceeded, message))
        });
        self.close_all_io().await;
        let unmounted = self.unmount_rootfs().await;
        deleted?;
        unmounted.map_err(|error| error.within("failed rootfs umount"))?;
        let Snapshot { pid, exit, .. } = self.init.snapshot();
        let exit = exit.unwrap_or_else(Exit::never);
        self.init.update(|init| {
            init.state = init.state.after(InitEvent::Deleted);
            init.exit = Some(exit);
        });
        self.forget_execs();
        forget();
        self.publish_deleted(pid, exit);
        Ok(Deleted { pid, exit })
    }

    /// Unmounts the rootfs; where that does not end, because a filesystem's server does not answer, it is detached.
    async fn unmount_rootfs(&self) -> Result<()> {
        let rootfs = self.bundle.join("rootfs");
        let path = rootfs.clone();
        let unmount = threads::run(move || mount::unmount_recursive(&path, mount::PATIENCE));
        if let Ok(unmounted) = timeout(UNMOUNT, unmount).await {
            return unmounted?;
        }
        tracing::warn!(id = self.id, "unmounting rootfs hangs; it is detached");
        let detach = threads::run(move || mount::detach_recursive(&rootfs));
        timeout(UNMOUNT, detach).await.unwrap_or_else(|_| {
            Err(Error::new(Code::DeadlineExceeded, "neither unmounting nor detaching it ends"))
        })?
    }

    /// Ends a container that was made and not started, so that its exit comes before its delete.
    async fn end_unstarted(&self) {
        let asked = timeout(DEATH, self.runc.kill(&self.id, SIGKILL, false)).await;
        if !matches!(asked, Ok(Ok(()))) {
            // Mostly it has just ended. Where the runtime is at fault, it is done without.
            let killed = self.init.signal(SIGKILL);
            tracing::debug!(id = self.id, ?asked, ?killed, "kill before delete");
        }
        if timeout(DEATH, self.init.exited()).await.is_err() {
            tracing::warn!(id = self.id, "a killed container does not end");
        }
    }

    async fn close_all_io(&self) {
        self.init.close_io().await;
        let execs: Vec<Arc<Process<ExecState>>> = lock(&self.execs).values().cloned().collect();
        for exec in execs {
            exec.close_io().await;
            let _ = std::fs::remove_file(self.exec_pid_file(&exec.id));
        }
    }

    /// Execs go with their container. Nobody shall wait for one that was never started.
    fn forget_execs(&self) {
        let execs = std::mem::take(&mut *lock(&self.execs));
        for exec in execs.into_values() {
            exec.update(|exec| {
                exec.state = exec.state.after(ExecEvent::Deleted);
                exec.exit.get_or_insert_with(Exit::never);
            });
        }
    }

    fn publish_deleted(&self, pid: u32, exit: Exit) {
        let mut event = TaskDelete::new();
        event.container_id.clone_from(&self.id);
        event.pid = pid;
        event.exit_status = exit.status;
        event.exited_at = Some(crate::publisher::timestamp(exit.at)).into();
        self.shared.publisher.publish(&event);
    }
}

/// Waits for the output of an ended process to be read.
async fn drain<S: Copy>(process: &Process<S>) {
    if let Some(io) = process.io()
        && !io.drain(DRAIN).await
    {
        tracing::warn!(id = process.id, "output was not read to its end");
    }
}
