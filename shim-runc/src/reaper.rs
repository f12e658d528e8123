//! The one place that waits for children.
//!
//! The shim is a subreaper: beside the OCI runtimes and loggers it starts, it inherits every
//! container process whose runtime ends, and every orphan of those. One loop collects them all.
//!
//! * A process started here ([`Reaper::spawn`]) is registered under the same lock that the loop
//!   takes, so that its exit finds it.
//! * A container process comes to us by pid, some time after it began. Whoever is about to learn
//!   a pid takes a [`Claim`] first; while a claim is open, exits of unknown pids are kept, and
//!   [`Claim::adopt`] finds the one it needs. Without a claim they are orphans and forgotten.
//!
//! An exit is handed over by a channel of its own: nothing is bounded, nothing blocks the
//! loop, nothing is dropped.

use std::{
    collections::HashMap,
    io,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use nix::{errno::Errno, unistd::Pid};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::yield_now,
};

use crate::sys::process::{self, PidFd};

/// How many ended children are collected at once, before others have their turn.
const BATCH: usize = 64;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// 0 to 255, or 128 + n after signal n.
    pub status: u32,
    /// When it was collected.
    pub at: SystemTime,
}

/// Go's zero time, which containerd sends and expects for "never": seconds before 1970.
const ZERO_TIME: Duration = Duration::from_secs(62_135_596_800);

impl Exit {
    /// The end of a process that never ran.
    pub fn never() -> Self {
        Self { status: 0, at: never() }
    }

    /// Whether the process ended by exit(0).
    pub fn success(self) -> bool {
        self.status == 0
    }
}

/// The time at which a process ended that has not.
pub fn never() -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_sub(ZERO_TIME).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The exit to come of one process.
#[derive(Debug, Clone)]
pub struct ExitWaiter(watch::Receiver<Option<Exit>>);

impl ExitWaiter {
    /// Waits for the exit.
    pub async fn wait(mut self) -> Exit {
        match self.0.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(exit)) => *exit,
            // The sender lives in the table until the exit, and the table as long as the reaper.
            Ok(None) | Err(_) => Exit { status: 255, at: SystemTime::now() },
        }
    }
}

/// Waits for every child of this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Reaper(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    waiting: HashMap<i32, watch::Sender<Option<Exit>>>,
    /// Open claims; while there are any, `unknown` keeps the exits that nobody waits for.
    claims: usize,
    unknown: HashMap<i32, Exit>,
}

impl Table {
    fn deliver(&mut self, pid: i32, exit: Exit) {
        if let Some(waiter) = self.waiting.remove(&pid) {
            // Nobody listens any more: then nobody needs it.
            let _ = waiter.send(Some(exit));
        } else if self.claims > 0 {
            self.unknown.insert(pid, exit);
        }
    }

    fn register(&mut self, pid: i32) -> ExitWaiter {
        let (sender, receiver) = watch::channel(None);
        self.waiting.insert(pid, sender);
        ExitWaiter(receiver)
    }
}

/// A process that the shim started itself.
#[derive(Debug)]
pub struct Child {
    /// Its pid.
    pub pid: Pid,
    /// The pipe that its command asked for.
    pub stdout: Option<std::process::ChildStdout>,
    handle: Option<PidFd>,
    exit: ExitWaiter,
}

impl Child {
    /// Waits for its end; any number of times, by any number of callers.
    pub async fn ended(&self) -> Exit {
        self.exit.clone().wait().await
    }

    /// Sends it a signal. It being gone is no error.
    ///
    /// # Errors
    /// As kill(2), except for `ESRCH`.
    pub fn kill(&self, signal: nix::sys::signal::Signal) -> io::Result<()> {
        let Some(handle) = &self.handle else { return Ok(()) };
        match handle.send(signal as i32) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A container process, adopted by its pid.
#[derive(Debug)]
pub struct Adopted {
    /// Its handle for signals; `None` when it is gone already, or the kernel has no pidfds.
    pub handle: Option<PidFd>,
    /// Its exit to come, or come already.
    pub exit: ExitWaiter,
}

impl Reaper {
    /// A reaper that has no loop yet; see [`Reaper::listen`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts listening for the ends of children. The returned future is the loop; run it as long
    /// as there can be children.
    ///
    /// # Errors
    /// When the signal handler cannot be set up.
    pub fn listen(&self) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        let child_ended = signal(SignalKind::child())?;
        Ok(self.clone().run(child_ended))
    }

    async fn run(self, mut child_ended: Signal) {
        loop {
            while !self.collect() {
                // There are always more where processes are made as fast as they can be; others want their turn.
                yield_now().await;
            }
            if child_ended.recv().await.is_none() {
                return;
            }
        }
    }

    /// Collects children that have ended, a batch of them; whether that was all.
    fn collect(&self) -> bool {
        let mut table = self.lock();
        for _ in 0..BATCH {
            let Some((pid, status)) = process::collect_child() else { return true };
            table.deliver(pid.as_raw(), Exit { status, at: SystemTime::now() });
        }
        false
    }

    /// Starts a process and registers it, with no moment between the two.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut table = self.lock();
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let exit = table.register(pid.as_raw());
        // Still under the lock, so the child is not collected and the pid is still its own.
        let handle = PidFd::open(pid).ok();
        Ok(Child { pid, stdout: child.stdout.take(), handle, exit })
    }

    /// Keeps the exits of unknown pids until the claim is gone.
    pub fn claim(&self) -> Claim {
        self.lock().claims += 1;
        Claim(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is whole at every point where a holder could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to adopt processes that end before their pid is known.
#[derive(Debug)]
pub struct Claim(Reaper);

impl Claim {
    /// Makes the process `pid` ours to wait for.
    ///
    /// `None` if it is not a child of the shim and no exit of it was seen, or if it was adopted
    /// before: then the runtime has named a process that is not the new one.
    pub fn adopt(&self, pid: Pid) -> Option<Adopted> {
        let mut table = self.0.lock();
        if table.waiting.contains_key(&pid.as_raw()) {
            // Somebody's already: a runtime has named a process that it did not make.
            return None;
        }
        // A process of that number which is still ours to collect comes before a kept exit: that
        // one was of an earlier process with the same number.
        if process::is_unreaped_child(pid) {
            table.unknown.remove(&pid.as_raw());
            let exit = table.register(pid.as_raw());
            return Some(Adopted { handle: PidFd::open(pid).ok(), exit });
        }
        let exit = table.unknown.remove(&pid.as_raw())?;
        let waiter = table.register(pid.as_raw());
        table.deliver(pid.as_raw(), exit);
        Some(Adopted { handle: None, exit: waiter })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.0.lock();
        table.claims -= 1;
        if table.claims == 0 {
            table.unknown = HashMap::new();
        }
    }
}
