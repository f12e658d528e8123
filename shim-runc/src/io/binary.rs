//! Logging binaries: a process of the client's choice reads stdout and stderr itself.
//!
//! The protocol is containerd's (core/runtime/v2/logging): stdout, stderr and a pipe to say "ready"
//! at 3, 4 and 5; two variables in the environment and no others; SIGTERM at the end.

use std::{
    future::Future,
    io,
    os::fd::OwnedFd,
    pin::Pin,
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nix::{poll::PollFlags, sys::signal::Signal, unistd::read};
use runtime_proto::errdefs::Code;
use tokio::{
    io::Interest,
    time::{Instant, sleep, timeout},
};

use super::{
    Owner,
    inherit::pass_descriptors,
    node::path_error,
    output::Label,
    pipe::{Pipe, events_now, set_nonblocking},
    relay::discard,
    source::Source,
    uri::LoggingUri,
    watch,
};
use crate::error::{Error, Result};

/// How long a logger may take to say that it is ready: what containerd gives a shim to set up all
/// of a process's I/O. A logger that never answers must not keep a Create for ever.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a logger may go on writing after SIGTERM. Loggers are written against this number of
/// containerd's shim, so it is theirs to use up.
pub(super) const TERM_TIMEOUT: Duration = Duration::from_secs(12);

/// How long the kernel may take to end a killed logger; longer only in uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// First and longest pause between looks whether a logger has read everything, at the end only.
const DRAIN_FIRST: Duration = Duration::from_millis(1);
const DRAIN_LAST: Duration = Duration::from_millis(50);

/// Starts processes whose exits somebody else collects.
pub trait Spawn: Send + Sync {
    /// Starts `command`, or says why the program cannot be run.
    fn spawn(&self, command: Command) -> io::Result<Box<dyn Spawned>>;
}

/// The future of an exit.
pub type ExitFuture<'a> = Pin<Box<dyn Future<Output = ExitStatus> + Send + 'a>>;

/// A process that was started by [`Spawn`].
pub trait Spawned: Send + Sync {
    /// Sends a signal; nothing happens once the process was reaped.
    fn kill(&self, signal: Signal) -> io::Result<()>;

    /// Resolves when the process is gone, at once if it is already; for any number of callers.
    fn exited(&self) -> ExitFuture<'_>;
}

/// A running logger. Dropping it kills the process; [`stop`](Self::stop) is the kind way.
pub(super) struct Logger {
    child: Box<dyn Spawned>,
    gone: AtomicBool,
    /// Our own readers of stdout and stderr: should the logger die, the process must not.
    tails: [OwnedFd; 2],
}

/// A logger that is ready, and the ends to write to.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) logger: Logger,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Logger {
    /// Starts a logger and waits until it is ready.
    pub(super) async fn start(
        spawner: &dyn Spawn,
        uri: &LoggingUri,
        owner: Owner,
        id: &str,
        namespace: &str,
    ) -> Result<Started> {
        let program = uri.program.display();
        let stdout = Pipe::logged(owner)?;
        let stderr = Pipe::logged(owner)?;
        let (ready, ready_child) =
            io::pipe().map_err(|error| Error::io("make readiness pipe", error))?;
        let describe = |error| path_error(format!("start logging binary {program}"), error);
        let child = {
            let mut command = Command::new(&uri.program);
            command.args(&uri.args).env_clear();
            command.env("CONTAINER_ID", id).env("CONTAINER_NAMESPACE", namespace);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let copy = |tail: &OwnedFd| tail.try_clone().map_err(describe);
            let readers = [copy(&stdout.ours)?, copy(&stderr.ours)?, ready_child.into()];
            let _reserved = pass_descriptors(&mut command, readers).map_err(describe)?;
            spawner.spawn(command).map_err(describe)?
        };
        let tails = [stdout.ours, stderr.ours];
        let logger = Self { child, gone: AtomicBool::new(false), tails };
        if let Err(error) = logger.await_ready(ready.into(), uri.strict).await {
            // Whoever hears of the failure is to find nothing of it.
            logger.end(Signal::SIGKILL, KILL_TIMEOUT).await;
            return Err(error.within(format_args!("logging binary {program}")));
        }
        Ok(Started { logger, stdout: stdout.child, stderr: stderr.child })
    }

    async fn await_ready(&self, ready: OwnedFd, strict: bool) -> Result<()> {
        set_nonblocking(&ready)?;
        let describe = |error| Error::io("wait until it is ready", error);
        let ready = watch(ready, Interest::READABLE).map_err(describe)?;
        let mut byte = [0];
        let answer =
            ready.async_io(Interest::READABLE, |fd| read(fd, &mut byte).map_err(io::Error::from));
        match timeout(READY_TIMEOUT, answer).await {
            Ok(Ok(0)) if strict => {
                Err(Error::new(Code::FailedPrecondition, "ended without saying that it is ready"))
            }
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(describe(error)),
            Err(_) => Err(Error::new(Code::DeadlineExceeded, "did not say that it is ready")),
        }
    }

    /// Watches over the logger: when it dies before its input ends, reads the rest in its place.
    pub(super) async fn guard(&self, label: Label) {
        let status = self.child.exited().await;
        self.gone.store(true, Ordering::Relaxed);
        if self.drained() {
            return;
        }
        label.warn("logging binary is gone, further output is dropped", &status);
        let [stdout, stderr] = &self.tails;
        let (stdout, stderr) = tokio::join!(empty(stdout), empty(stderr));
        if let Err(error) = stdout.and(stderr) {
            label.warn("reading output failed, the rest is lost", &error);
        }
    }

    /// Waits until the logger has read everything and no writer is left; `false` at `deadline`.
    pub(super) async fn drain(&self, deadline: Instant) -> bool {
        let mut pause = DRAIN_FIRST;
        while !self.drained() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(pause).await;
            pause = DRAIN_LAST.min(pause * 2);
        }
        true
    }

    fn drained(&self) -> bool {
        self.tails.iter().all(|tail| {
            let events = events_now(tail, PollFlags::POLLIN);
            events.contains(PollFlags::POLLHUP) && !events.contains(PollFlags::POLLIN)
        })
    }

    /// Ends the logger: asks, waits for `patience`, kills.
    pub(super) async fn stop(&self, patience: Duration) {
        if self.gone.load(Ordering::Relaxed) {
            return;
        }
        for (signal, wait) in [(Signal::SIGTERM, patience), (Signal::SIGKILL, KILL_TIMEOUT)] {
            if self.end(signal, wait).await {
                return;
            }
        }
    }

    /// Sends a signal and waits for the end, for so long; false if it has not come by then.
    async fn end(&self, signal: Signal, wait: Duration) -> bool {
        // A signal that cannot be sent leaves the wait, which is bounded.
        let _ = self.child.kill(signal);
        let ended = timeout(wait, self.child.exited()).await.is_ok();
        if ended {
            self.gone.store(true, Ordering::Relaxed);
        }
        ended
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        if !*self.gone.get_mut() {
            // The last resort on a path that cannot wait; there is nobody to tell.
            let _ = self.child.kill(Signal::SIGKILL);
        }
    }
}

impl std::fmt::Debug for Logger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logger").field("gone", &self.gone).finish_non_exhaustive()
    }
}

/// The logger shared the blocking description; now that it is gone, it is ours to change.
async fn empty(tail: &OwnedFd) -> io::Result<()> {
    set_nonblocking(tail).map_err(io::Error::other)?;
    discard(&mut Source::pipe(tail.try_clone()?)?).await
}
