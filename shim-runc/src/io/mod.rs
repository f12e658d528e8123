//! Standard I/O of one process: between the process and whatever its client named.
//!
//! * `uri` and `plan` read the request; nothing is opened before all of it is understood.
//! * `open` opens it all, through `node`, `pipe`, `fifo`, `file`, `console` and `binary` (with
//!   `inherit`). No open waits for a peer, so a client that never comes holds up nobody.
//! * `source` and `relay` move bytes, with larger pipes where a `surge` comes; `output` and `input` are the tasks that do so.
//!
//! While nothing happens, no task wakes up and no buffer is allocated. The one exception is a peer
//! the kernel does not announce: a late reader, or a terminal that nobody holds open.

mod binary;
mod console;
mod fifo;
mod file;
mod inherit;
mod input;
mod node;
mod open;
mod output;
mod pipe;
pub(crate) mod plan;
mod relay;
mod source;
mod surge;
pub(crate) mod uri;

#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime_proto::errdefs::Code;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};

pub use self::{
    binary::{ExitFuture, Spawn, Spawned},
    console::Size,
};
use self::{
    binary::{Logger, TERM_TIMEOUT},
    input::{feed_pipe, feed_terminal},
    open::{Input, Opened, Streams},
    output::{Label, Running, Sink, carry},
    source::Source,
};
use crate::{
    error::{Error, Result},
    sys,
};

/// How long closing waits for a write to a file that is under way. Nothing is lost after that: the
/// write ends when its disk lets it.
const FILE_TIMEOUT: Duration = Duration::from_secs(2);

/// Who owns the pipes of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User id on the host.
    pub uid: u32,
    /// Group id on the host.
    pub gid: u32,
}

/// The stdio of a process as its client asked for it.
#[derive(Clone, Copy)]
pub struct StdioRequest<'a> {
    /// The container's id for its init, else the exec's id.
    pub id: &'a str,
    /// The container's namespace.
    pub namespace: &'a str,
    /// Fifo to read from; empty for none.
    pub stdin: &'a str,
    /// URI or fifo to write to; empty for none.
    pub stdout: &'a str,
    /// URI or fifo to write to; empty for none.
    pub stderr: &'a str,
    /// Whether the process gets a terminal.
    pub terminal: bool,
    /// Who owns its pipes.
    pub owner: Owner,
    /// Starts logging binaries.
    pub spawner: &'a dyn Spawn,
}

/// What the OCI runtime gets as one of its standard streams.
#[derive(Debug)]
pub enum ChildEnd {
    /// `/dev/null`, open for both reading and writing.
    Null,
    /// An end of a pipe.
    Fd(OwnedFd),
}

/// What the OCI runtime gets. Drop it as soon as the runtime was spawned, or streams never end.
#[derive(Debug)]
pub struct ChildStdio {
    /// Standard input.
    pub stdin: ChildEnd,
    /// Standard output.
    pub stdout: ChildEnd,
    /// Standard error.
    pub stderr: ChildEnd,
    /// Where the OCI runtime sends the master of the terminal.
    pub console_socket: Option<PathBuf>,
}

/// The stdio of one process, from [`open`](Self::open) to [`close`](Self::close). Dropping it
/// without `close` ends everything at once.
pub struct ProcessIo {
    label: Label,
    /// What waits for [`attach`](Self::attach).
    opened: Mutex<Option<Box<Opened>>>,
    /// The copiers; `None` once closed. A std lock: it is never held over an await.
    tasks: Mutex<Option<JoinSet<()>>>,
    /// How many outputs still have something to deliver.
    running: Arc<watch::Sender<usize>>,
    /// Whether the process is gone.
    exited: watch::Sender<bool>,
    /// The writer that keeps stdin from its end.
    stdin_keeper: Mutex<Option<OwnedFd>>,
    terminal: Mutex<Terminal>,
    /// Taken by the first who closes; an async lock, so that the second waits for the first.
    logger: tokio::sync::Mutex<Option<Arc<Logger>>>,
}

#[derive(Debug)]
enum Terminal {
    /// Not a terminal, or closed.
    None,
    /// Not received yet; the size it shall get.
    Awaited(Option<Size>),
    Master(Arc<OwnedFd>),
}

impl ProcessIo {
    /// Reads the request and opens everything it names. On error nothing is left.
    pub async fn open(request: &StdioRequest<'_>) -> Result<(Self, ChildStdio)> {
        let label = Label::new(request.namespace, request.id);
        let (opened, stdin_keeper, child) = open::open(request).await?;
        let awaited = if request.terminal { Terminal::Awaited(None) } else { Terminal::None };
        let io = Self {
            label,
            logger: tokio::sync::Mutex::new(opened.logger.clone()),
            opened: Mutex::new(Some(Box::new(opened))),
            tasks: Mutex::new(Some(JoinSet::new())),
            running: Arc::new(watch::Sender::new(0)),
            exited: watch::Sender::new(false),
            stdin_keeper: Mutex::new(stdin_keeper),
            terminal: Mutex::new(awaited),
        };
        Ok((io, child))
    }

    /// What is in the stderr of a process that was never attached: there the OCI runtime says why
    /// it could not make the process, if it says it nowhere else.
    pub fn last_words(&self) -> Vec<u8> {
        let opened = lock(&self.opened);
        let Some(Streams::Pipes(outputs)) = opened.as_deref().map(|opened| &opened.streams) else {
            return Vec::new();
        };
        let stderr = outputs.iter().find(|(stream, ..)| *stream == "stderr");
        stderr.map(|(_, source, _)| source.read_now()).unwrap_or_default()
    }

    /// Starts copying. Call it when the OCI runtime has created the process: by then it has sent
    /// the terminal, if there is one.
    pub async fn attach(&self) -> Result<()> {
        let Some(opened) = lock(&self.opened).take() else { return Ok(()) };
        let Opened { input, streams, logger } = *opened;
        let mut tasks = JoinSet::new();
        if let Some(logger) = logger {
            let label = self.label.stream("logger");
            tasks.spawn(async move { logger.guard(label).await });
        }
        match streams {
            Streams::Pipes(outputs) => {
                for (stream, source, sink) in outputs {
                    tasks.spawn(self.carry(stream, source, sink));
                }
                if let Some(Input { feed, pipe: Some(pipe) }) = input {
                    tasks.spawn(feed_pipe(feed, pipe, self.label.stream("stdin")));
                }
            }
            Streams::Terminal(socket, sink) => {
                let master = Arc::new(socket.receive().await?);
                self.install(&master)?;
                let source = Source::terminal(Arc::clone(&master), self.exited.subscribe())
                    .map_err(|error| Error::io("watch terminal", error))?;
                tasks.spawn(self.carry("terminal", source, sink));
                if let Some(input) = input {
                    tasks.spawn(feed_terminal(input.feed, master, self.label.stream("stdin")));
                }
            }
        }
        let mut slot = lock(&self.tasks);
        if slot.is_none() {
            return Err(Error::new(Code::FailedPrecondition, "stdio was closed meanwhile"));
        }
        *slot = Some(tasks);
        Ok(())
    }

    /// Sets the size of the terminal, now or as soon as there is one. No terminal, no effect.
    pub fn resize(&self, size: Size) -> Result<()> {
        match &mut *lock(&self.terminal) {
            Terminal::None => Ok(()),
            Terminal::Awaited(awaited) => {
                *awaited = Some(size);
                Ok(())
            }
            Terminal::Master(master) => console::resize(master, size),
        }
    }

    /// Lets stdin end after what clients have written; in any state, any number of times.
    pub fn close_stdin(&self) {
        drop(lock(&self.stdin_keeper).take());
    }

    /// Says that the process is gone: its terminal is read up to what is there and no further.
    pub fn exited(&self) {
        self.exited.send_replace(true);
    }

    /// Waits until all output was delivered; `false` when `limit` came first. Output in a fifo that
    /// nobody has open counts as delivered only when a reader has come.
    pub async fn drain(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut running = self.running.subscribe();
        // The sender lives as long as `self`, so the wait cannot fail.
        if timeout_at(deadline, running.wait_for(|count| *count == 0)).await.is_err() {
            return false;
        }
        let logger = self.logger.lock().await.clone();
        match logger {
            Some(logger) => logger.drain(deadline).await,
            None => true,
        }
    }

    /// Releases every descriptor, task and process. Idempotent; bounded by budgets of its own.
    pub async fn close(&self) {
        let tasks = lock(&self.tasks).take();
        drop(lock(&self.opened).take());
        self.close_stdin();
        *lock(&self.terminal) = Terminal::None;
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
        let mut running = self.running.subscribe();
        // What is late is late; the thread that writes it lets go of everything by itself.
        let _ = timeout(FILE_TIMEOUT, running.wait_for(|count| *count == 0)).await;
        let mut logger = self.logger.lock().await;
        if let Some(logger) = &*logger {
            logger.stop(TERM_TIMEOUT).await;
        }
        *logger = None;
    }

    fn carry(
        &self,
        stream: &'static str,
        source: Source,
        sink: Sink,
    ) -> impl Future<Output = ()> + Send + 'static {
        carry(source, sink, Running::new(&self.running), self.label.stream(stream))
    }

    /// Keeps the master for later sizes, and gives it the one that came too early.
    fn install(&self, master: &Arc<OwnedFd>) -> Result<()> {
        let mut terminal = lock(&self.terminal);
        let Terminal::Awaited(size) = *terminal else {
            return Err(Error::new(Code::FailedPrecondition, "stdio was closed meanwhile"));
        };
        *terminal = Terminal::Master(Arc::clone(master));
        match size {
            Some(size) => console::resize(master, size),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ProcessIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessIo")
            .field("id", &self.label.id)
            .field("running", &*self.running.borrow())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for StdioRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioRequest")
            .field("id", &self.id)
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .field("terminal", &self.terminal)
            .finish_non_exhaustive()
    }
}

/// A lock that a panic elsewhere does not take away: every critical section here is one statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor whose readiness the runtime knows.
type Watched = AsyncFd<Arc<OwnedFd>>;

/// Watches a non-blocking descriptor. Must be called inside the runtime.
fn watch(fd: impl Into<Arc<OwnedFd>>, interest: Interest) -> io::Result<Watched> {
    sys::readiness::watch(fd.into(), interest)
}
