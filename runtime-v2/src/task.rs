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
    hearing::Told,
    id::{ExecId, Key},
    observed::End,
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
    pub(crate) fn note(&self, told: Told) -> EndNote {
        let (seconds, nanos) = self.at.as_ref().map_or((0, 0), |at| (at.seconds, at.nanos));
        let Told { exit: exited, deletion: deleted } = told;
        EndNote { exited, deleted, pid: self.pid, status: self.status, seconds, nanos }
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
    /// Which events of its end have been told, by the shim or in its place.
    told: watch::Sender<Told>,
    /// Held while one of them is being told, from before it is until that is known: neither is told
    /// by two at one time.
    telling: tokio::sync::Mutex<()>,
    /// Held while that is noted in the bundle, so that the last note is the one that knows most.
    noting: tokio::sync::Mutex<()>,
    /// The end of the entry, for those that wait for a process whose shim died.
    gone: watch::Sender<Option<Exit>>,
}

/// What is known about a task's end.
#[derive(Debug, Default, Clone)]
struct Record {
    /// Init's exit, once an event has told it.
    published: Option<Exit>,
    /// The answer of the shim's Delete; the rest of the deletion may still be to do.
    deleted: Option<Exit>,
    /// Whether a load has found a shim without this task.
    leaked: bool,
}

impl Record {
    /// Init's exit as it is known behind this event.
    fn learn(&mut self, end: &End) -> Exit {
        // A deletion says the same in fewer words.
        if end.told.exit || self.published.is_none() {
            self.published = Some(end.exit.clone());
        }
        self.published.clone().unwrap_or_else(|| end.exit.clone())
    }
}

impl Entry {
    pub(crate) fn new(shim: Arc<Shim>, pid: u32) -> Arc<Self> {
        Arc::new(Self {
            shim,
            pid: AtomicU32::new(pid),
            turn: tokio::sync::Mutex::default(),
            record: Mutex::default(),
            told: watch::Sender::new(Told::NONE),
            telling: tokio::sync::Mutex::default(),
            noting: tokio::sync::Mutex::default(),
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

    /// A turn to tell the end, of whoever looks first whether it is told.
    pub(crate) async fn telling(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.telling.lock().await
    }

    /// Whether what an event says has been told.
    pub(crate) fn has_told(&self, end: &End) -> bool {
        self.concerns(end) && self.told().has(end.told)
    }

    /// Learns from an event. One of an earlier task of this id, which comes late, says nothing.
    pub(crate) async fn learn(&self, end: &End) {
        if self.concerns(end) {
            self.note(end).await;
        }
    }

    fn concerns(&self, end: &End) -> bool {
        let (own, told) = (self.pid(), end.exit.pid);
        own == told || own == 0 || told == 0
    }

    /// Keeps what has been told in mind, and writes it down before anybody acts on it.
    pub(crate) async fn note(&self, end: &End) {
        let _noting = self.noting.lock().await;
        let told = self.told().and(end.told);
        let exit = self.record().learn(end);
        // By now there may be another bundle of that id.
        if self.gone.borrow().is_none() {
            self.shim.bundle().note_end(exit.note(told)).await;
        }
        self.told.send_replace(told);
    }

    /// Learns what was told before there was this entry; it is written down meanwhile.
    pub(crate) fn recall(self: &Arc<Self>, ends: Vec<End>) {
        for end in ends.into_iter().filter(|end| self.concerns(end)) {
            self.record().learn(&end);
            self.told.send_modify(|told| *told = told.and(end.told));
            let entry = Arc::clone(self);
            tokio::spawn(async move { entry.note(&end).await });
        }
    }

    /// As the note in the bundle has it.
    pub(crate) fn read_note(&self, note: EndNote) {
        self.record().published = Some(note.into());
        self.told.send_replace(note.told());
    }

    /// What has been told of its end.
    pub(crate) fn told(&self) -> Told {
        *self.told.borrow()
    }

    /// Waits until all of this has been told; false if it has not been within the limit.
    pub(crate) async fn hear(&self, wanted: Told, limit: Duration) -> bool {
        let mut told = self.told.subscribe();
        timeout(limit, told.wait_for(|told| told.has(wanted))).await.is_ok()
    }

    pub(crate) fn deleted(&self) -> Option<Exit> {
        self.record().deleted.clone()
    }

    pub(crate) fn note_deleted(&self, exit: Exit) {
        self.record().deleted = Some(exit);
    }

    /// Whether it is deleted but for what is still to be removed.
    pub(crate) fn is_left_over(&self) -> bool {
        self.deleted().is_some() && !self.is_leaked()
    }

    /// Notes that there is no such task: its shim is ended by the load that has found it.
    pub(crate) fn note_leaked(&self, exit: Exit) {
        let mut record = self.record();
        (record.deleted, record.leaked) = (Some(exit), true);
    }

    /// Whether it is no task to anybody who looks for one.
    pub(crate) fn is_leaked(&self) -> bool {
        self.record().leaked
    }

    /// Tells those that wait that nothing more will come. What is just being noted is so before
    /// this returns: behind it, there may be another bundle of that id.
    pub(crate) async fn end(&self, exit: Exit) {
        let _noting = self.noting.lock().await;
        self.gone.send_replace(Some(exit));
    }

    /// Waits for [`Entry::end`].
    pub(crate) async fn ended(&self) -> Option<Exit> {
        let mut gone = self.gone.subscribe();
        gone.wait_for(Option::is_some).await.ok()?.clone()
    }
}
