//! The client's side of stdio, a stand-in for the process, and a witness of what is reported.

use std::{
    fs::{File, OpenOptions},
    future::Future,
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::{Command, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, getegid, geteuid, mkfifo},
};
use tempfile::TempDir;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use tracing::{Level, Metadata, span, subscriber::DefaultGuard};

use super::super::{ChildEnd, ExitFuture, Owner, Spawn, Spawned, StdioRequest};

/// Longer than anything here takes on the slowest machine; reaching it is a hang.
const HANG: Duration = Duration::from_secs(60);

/// Where the fifos of one client are.
pub(super) struct Client {
    pub(super) directory: TempDir,
    pub(super) stdin: String,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) terminal: bool,
}

impl Client {
    /// Names nothing: fill in the fields that the test is about.
    pub(super) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            stdin: String::new(),
            stdout: String::new(),
            stderr: String::new(),
            terminal: false,
        }
    }

    /// All three streams are fifos.
    pub(super) fn with_fifos() -> Self {
        let mut client = Self::new();
        client.stdin = client.fifo("stdin");
        client.stdout = client.fifo("stdout");
        client.stderr = client.fifo("stderr");
        client
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn fifo(&self, name: &str) -> String {
        let path = self.path(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(super) fn request<'a>(&'a self, spawner: &'a dyn Spawn) -> StdioRequest<'a> {
        StdioRequest {
            id: "box",
            namespace: "tests",
            stdin: &self.stdin,
            stdout: &self.stdout,
            stderr: &self.stderr,
            terminal: self.terminal,
            owner: Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() },
            spawner,
        }
    }
}

/// Fails the test instead of hanging it.
pub(super) async fn soon<F: Future>(future: F) -> F::Output {
    timeout(HANG, future).await.expect("hangs")
}

/// Waits for a condition that other threads bring about.
pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(HANG, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Does on another thread what blocks.
pub(super) async fn apart<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    soon(spawn_blocking(job)).await.unwrap()
}

pub(super) fn process_end(end: ChildEnd) -> File {
    match end {
        ChildEnd::Fd(fd) => fd.into(),
        ChildEnd::Null => panic!("the process got /dev/null"),
    }
}

/// Opens a fifo as clients do (this waits for the other side) and reads it to its end.
pub(super) fn read_all(path: &str) -> Vec<u8> {
    let mut all = Vec::new();
    File::open(path).unwrap().read_to_end(&mut all).unwrap();
    all
}

pub(super) fn open_reader(path: &str) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
}

pub(super) fn open_writer(path: &str) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// Bytes that differ from page to page, so that a lost, doubled or swapped piece shows.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A thread that writes in pieces of odd sizes and then closes.
pub(super) fn write_apart(mut end: File, bytes: Vec<u8>) -> thread::JoinHandle<io::Result<()>> {
    thread::spawn(move || {
        let mut sizes = [1, 70_001, 4096, 13, 65_536, 300].into_iter().cycle();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().unwrap().min(rest.len()));
            end.write_all(piece)?;
            rest = after;
        }
        Ok(())
    })
}

/// Refuses to start anything.
pub(super) struct NoSpawn;

impl Spawn for NoSpawn {
    fn spawn(&self, _: Command) -> io::Result<Box<dyn Spawned>> {
        Err(io::Error::other("nothing is to be started here"))
    }
}

/// Starts real processes and waits for each on a thread of its own.
pub(super) struct ThreadSpawn;

pub(super) struct ThreadChild {
    pid: Pid,
    status: watch::Receiver<Option<ExitStatus>>,
}

impl Spawn for ThreadSpawn {
    fn spawn(&self, mut command: Command) -> io::Result<Box<dyn Spawned>> {
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let (sender, status) = watch::channel(None);
        // Another test's reaper may be quicker; then the child is gone all the same.
        thread::spawn(move || sender.send(Some(child.wait().unwrap_or_default())));
        Ok(Box::new(ThreadChild { pid, status }))
    }
}

impl Spawned for ThreadChild {
    fn kill(&self, signal: Signal) -> io::Result<()> {
        if self.status.borrow().is_none() {
            kill(self.pid, signal)?;
        }
        Ok(())
    }

    fn exited(&self) -> ExitFuture<'_> {
        let mut status = self.status.clone();
        Box::pin(async move { status.wait_for(Option::is_some).await.unwrap().unwrap() })
    }
}

/// Counts the warnings of this thread, which is where the tests' runtimes are.
#[derive(Clone)]
pub(super) struct Witness(Arc<AtomicUsize>);

impl Witness {
    pub(super) fn watch() -> (Self, DefaultGuard) {
        let witness = Self(Arc::default());
        let guard = tracing::subscriber::set_default(witness.clone());
        (witness, guard)
    }

    pub(super) fn warnings(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl tracing::Subscriber for Witness {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
