//! What happens when a process of a container ends.

use std::{sync::Arc, time::Duration};

use runtime_proto::{
    errdefs::Code,
    events::{TaskExit, TaskOOM},
};
use tokio::time::{sleep, timeout};

use super::{Container, SIGKILL, lock};
use crate::{
    cgroup::OomWatch,
    error::{Error, Result},
    process::{
        Process,
        state::{ExecEvent, ExecState, InitEvent},
    },
    reaper::{Exit, ExitWaiter},
};

/// How long the runtime may take, once init has ended: to kill what it has left, or to finish what
/// was being started. A runtime that hangs must not keep the end of init from being told.
const LEFTOVERS: Duration = Duration::from_secs(10);

impl Container {
    /// Waits for init's end, ends what it leaves behind, and tells.
    pub(super) async fn watch_init(self: Arc<Self>, exit: ExitWaiter, oom: Option<OomWatch>) {
        let (exit, oom_untold) = self.watch_until(exit, oom.as_ref()).await;
        self.with_ledger(crate::exits::Ledger::init_exited);
        if self.outlives_init {
            self.kill_leftovers().await;
        }
        self.all_execs_told().await;
        let _gate = self.init.start_gate.lock().await;
        if let Some(io) = self.init.io() {
            io.exited();
        }
        if oom_untold {
            self.publish_oom();
        }
        self.report_oom(oom.as_ref());
        drop(oom);
        // The event first: who sees the state and deletes the container publishes after it.
        self.publish_exit(&self.id, self.pid(), exit);
        self.init.set_handle(None);
        self.init.update(|init| {
            init.state = init.state.after(InitEvent::Exited);
            init.exit = Some(exit);
        });
    }

    /// Ends what init has left behind, where the kernel does not.
    pub(super) async fn kill_leftovers(&self) {
        match timeout(LEFTOVERS, self.runc.kill(&self.id, SIGKILL, true)).await {
            Ok(Ok(())) => {}
            // Mostly because nothing is left to be killed.
            Ok(Err(error)) => tracing::debug!(id = self.id, %error, "processes after init"),
            Err(_) => tracing::warn!(id = self.id, "the runtime does not end what init left"),
        }
        self.kill_execs().await;
    }

    /// Ends the execs, whose ends are told before that of init: whatever the runtime did, and wherever they are by now.
    async fn kill_execs(&self) {
        let execs: Vec<_> = lock(&self.execs).values().cloned().collect();
        let mut any = false;
        for exec in execs.iter().filter(|exec| exec.snapshot().state == ExecState::Running) {
            // Mostly it has been ended just now.
            any |= exec.signal(SIGKILL).is_ok();
        }
        if any {
            self.thaw().await;
        }
    }

    /// Waits for the end of an exec, and tells.
    pub(super) async fn watch_exec(
        self: Arc<Self>,
        exec: Arc<Process<ExecState>>,
        exit: ExitWaiter,
    ) {
        let exit = exit.wait().await;
        let gate = exec.start_gate.lock().await;
        if let Some(io) = exec.io() {
            io.exited();
        }
        self.publish_exit(&exec.id, exec.snapshot().pid, exit);
        exec.set_handle(None);
        exec.update(|exec| {
            exec.state = exec.state.after(ExecEvent::Exited);
            exec.exit = Some(exit);
        });
        drop(gate);
        self.with_ledger(crate::exits::Ledger::end_exec);
    }

    /// Waits for init's end; OOM kills are told as they come, but not before the start. Says, too, whether one is still to
    /// be told: a start may hang, and is given up only when this has returned.
    async fn watch_until(&self, exit: ExitWaiter, oom: Option<&OomWatch>) -> (Exit, bool) {
        let exit = exit.wait();
        tokio::pin!(exit);
        if let Some(oom) = oom {
            loop {
                tokio::select! {
                    exit = &mut exit => return (exit, false),
                    killed = oom.next() => if killed.is_none() { break },
                }
                tokio::select! {
                    biased;
                    _gate = self.init.start_gate.lock() => self.publish_oom(),
                    exit = &mut exit => return (exit, true),
                }
            }
        }
        (exit.await, false)
    }

    /// Tells of a kill that the watch has not told yet: that of init, mostly.
    fn report_oom(&self, oom: Option<&OomWatch>) {
        if oom.is_some_and(OomWatch::poll_now) {
            self.publish_oom();
        }
    }

    fn publish_oom(&self) {
        let mut event = TaskOOM::new();
        event.container_id.clone_from(&self.id);
        self.shared.publisher.publish(&event);
    }

    async fn all_execs_told(&self) {
        self.ledger_says(crate::exits::Ledger::init_may_be_told).await;
    }

    /// Has the runtime do something with the container, for which it must live. When init has been dead for longer than
    /// any call can still need, this is given up: the end of init may wait for it, and delete does.
    pub(super) async fn while_alive<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let long_dead = async {
            self.ledger_says(crate::exits::Ledger::has_init_exited).await;
            sleep(LEFTOVERS).await;
        };
        tokio::select! {
            done = call => done,
            () = long_dead => {
                Err(Error::new(Code::FailedPrecondition, "it has ended while the runtime was busy"))
            }
        }
    }

    /// Changes the ledger, and wakes those who wait for what it says.
    pub(super) fn with_ledger<T>(&self, look: impl FnOnce(&mut crate::exits::Ledger) -> T) -> T {
        let result = look(&mut lock(&self.ledger));
        self.ledger_changed.notify_waiters();
        result
    }

    async fn ledger_says(&self, yes: impl Fn(&crate::exits::Ledger) -> bool) {
        loop {
            let changed = self.ledger_changed.notified();
            if yes(&lock(&self.ledger)) {
                return;
            }
            changed.await;
        }
    }

    fn publish_exit(&self, id: &str, pid: u32, exit: Exit) {
        let mut event = TaskExit::new();
        event.container_id.clone_from(&self.id);
        id.clone_into(&mut event.id);
        event.pid = pid;
        event.exit_status = exit.status;
        event.exited_at = Some(crate::publisher::timestamp(exit.at)).into();
        self.shared.publisher.publish(&event);
    }
}
