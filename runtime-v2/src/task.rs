//! One task: what can be done with a container and the processes in it.
//!
//! A [`Task`] is a cheap handle. Every call has a limit, which the shim is told too; a caller with
//! a deadline of its own sets it by [`Task::within`].

mod verbs;

pub use verbs::{Connected, ExecOptions};
pub(crate) use verbs::{exit, pids, state};

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use runtime_proto::{
    task::Status,
    types::{Any, Timestamp},
};
use tokio::{sync::watch, time::timeout};

use crate::{
    bundle::EndNote,
    id::{ExecId, Key},
    shim::Shim,
};

/// Init of a container, or a further process in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProcessId {
    /// The first process.
    Init,
    /// A process of an exec.
    Exec(ExecId),
}

impl ProcessId {
    /// As the protocol writes it: empty for init.
    fn wire(&self) -> String {
        match self {
            ProcessId::Init => String::new(),
            ProcessId::Exec(id) => id.to_string(),
        }
    }
}

impl From<ExecId> for ProcessId {
    fn from(id: ExecId) -> Self {
        ProcessId::Exec(id)
    }
}

/// The end of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    /// Which process; 0 if that is not known.
    pub pid: u32,
    /// 0 to 255; 128 and the number of the signal for one that was killed.
    pub status: u32,
    /// When; none for a process that never ran.
    pub at: Option<Timestamp>,
}

impl Exit {
    /// As a bundle keeps it.
    pub(crate) fn note(&self, deleted: bool) -> EndNote {
        let (seconds, nanos) = self.at.as_ref().map_or((0, 0), |at| (at.seconds, at.nanos));
        EndNote { deleted, pid: self.pid, status: self.status, seconds, nanos }
    }
}

impl From<EndNote> for Exit {
    fn from(note: EndNote) -> Self {
        let mut at = Timestamp::new();
        (at.seconds, at.nanos) = (note.seconds, note.nanos);
        Self { pid: note.pid, status: note.status, at: Some(at) }
    }
}

/// Where a process reads and writes, by path or URI; empty is nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stdio {
    /// Its input.
    pub stdin: String,
    /// Its output.
    pub stdout: String,
    /// Its errors; unused with a terminal.
    pub stderr: String,
    /// Whether it gets a terminal.
    pub terminal: bool,
}

/// What a shim says about a process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessState {
    /// Its pid, also after its end.
    pub pid: u32,
    /// Created, running, stopped, ...
    pub status: Status,
    /// Its streams.
    pub stdio: Stdio,
    /// Directory of the container.
    pub bundle: String,
    /// Its end, if that is behind it.
    pub exit: Option<Exit>,
}

/// A process in a container, as listed.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessInfo {
    /// Its pid on the host.
    pub pid: u32,
    /// What the shim adds, such as the exec it belongs to.
    pub info: Option<Any>,
}

/// A handle on one task.
#[derive(Debug, Clone)]
pub struct Task {
    entry: Arc<Entry>,
    limit: Option<Duration>,
}

impl Task {
    pub(crate) fn new(entry: Arc<Entry>) -> Self {
        Self { entry, limit: None }
    }

    /// The same task with every call limited to this.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Namespace and id.
    pub fn key(&self) -> &Key {
        self.entry.shim.key()
    }

    /// Pid of init; 0 before the start of one that is restored from a checkpoint.
    pub fn pid(&self) -> u32 {
        self.entry.pid()
    }

    /// The shim it lives in.
    pub fn shim(&self) -> &Shim {
        &self.entry.shim
    }
}

/// The manager's record of a task.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) shim: Arc<Shim>,
    pid: AtomicU32,
    /// Held by whoever takes the task down: a delete, or the clean-up after a dead shim.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// A plain lock: held for reads and writes of the record only.
    record: Mutex<Record>,
    /// Which events of the shim have passed through this manager.
    heard: watch::Sender<Heard>,
    /// The end of the entry, for those that wait for a process whose shim died.
    gone: watch::Sender<Option<Exit>>,
}

/// How much of a task's events has passed through the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Heard {
    /// None: nobody shows them to the manager, or nothing has happened yet.
    Nothing,
    /// Some.
    Something,
    /// The last, its deletion.
    Deletion,
}

/// What is known about a task's end.
#[derive(Debug, Default, Clone)]
struct Record {
    /// Init's exit, once the shim has published it.
    published: Option<Exit>,
    /// The answer of the shim's Delete; the rest of the deletion may still be to do.
    deleted: Option<Exit>,
}

impl Entry {
    pub(crate) fn new(shim: Arc<Shim>, pid: u32) -> Arc<Self> {
        Arc::new(Self {
            shim,
            pid: AtomicU32::new(pid),
            turn: tokio::sync::Mutex::default(),
            record: Mutex::default(),
            heard: watch::Sender::new(Heard::Nothing),
            gone: watch::Sender::new(None),
        })
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Learns init's pid, which a restored task has only from its start.
    pub(crate) fn learn_pid(&self, pid: u32) {
        if pid != 0 {
            self.pid.store(pid, Ordering::Relaxed);
        }
    }

    pub(crate) fn published(&self) -> Option<Exit> {
        self.record().published.clone()
    }

    pub(crate) fn note_published(&self, exit: Exit) {
        self.record().published.get_or_insert(exit);
    }

    /// Notes that an event has passed.
    pub(crate) fn hear(&self, heard: Heard) {
        self.heard.send_if_modified(|known| {
            let more = heard > *known;
            *known = heard.max(*known);
            more
        });
    }

    /// Whether the last event, that of the deletion, has passed.
    pub(crate) fn heard_deletion(&self) -> bool {
        *self.heard.borrow() == Heard::Deletion
    }

    /// Waits for the event of the deletion, if events pass here at all.
    pub(crate) async fn hear_deletion(&self, limit: Duration) {
        if *self.heard.borrow() == Heard::Something {
            let mut heard = self.heard.subscribe();
            // Too late means lost, or a shim that tells no events.
            let _ = timeout(limit, heard.wait_for(|heard| *heard == Heard::Deletion)).await;
        }
    }

    pub(crate) fn deleted(&self) -> Option<Exit> {
        self.record().deleted.clone()
    }

    pub(crate) fn note_deleted(&self, exit: Exit) {
        self.record().deleted = Some(exit);
    }

    /// Tells those that wait that nothing more will come.
    pub(crate) fn end(&self, exit: Exit) {
        self.gone.send_replace(Some(exit));
    }

    /// Waits for [`Entry::end`].
    pub(crate) async fn ended(&self) -> Option<Exit> {
        let mut gone = self.gone.subscribe();
        gone.wait_for(Option::is_some).await.ok()?.clone()
    }
}
