//! Being the shim: one thread, one runtime, one socket.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io,
    os::unix::{fs::OpenOptionsExt, net::UnixListener as StdUnixListener},
    path::Path,
    sync::Arc,
    time::Duration,
};

use nix::fcntl::OFlag;
use runtime_proto::{bootstrap::ENV_TTRPC_ADDRESS, errdefs::Code};
use tokio::{
    net::UnixListener,
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use super::{
    End, address,
    args::Args,
    handshake::ToStarter,
    socket::{self, Bound, SocketFile},
};
use crate::{
    container::Shared,
    error::{Error, Result},
    log::Log,
    publisher::Publisher,
    reaper::Reaper,
    registry::Registry,
    rpc::server,
    service::TaskService,
    sys::{process, title},
};

/// The descriptor of the socket for a shim that is not forked by us.
const LISTENER_FD: i32 = 3;

/// What the runtime opens for itself, and some more.
const DESCRIPTORS: i32 = 16;

/// How long the last events may take at the end. containerd waits 3 s for a shim to go, an init
/// system 90 s; a containerd that is away for longer learns of the exits from `delete`.
const LAST_EVENTS: Duration = Duration::from_secs(4);

/// For whom a shim serves.
#[derive(Debug)]
pub(super) struct Purpose {
    pub(super) namespace: String,
    pub(super) id: String,
    pub(super) debug: bool,
    /// containerd's ttrpc socket.
    pub(super) events: String,
}

/// A shim that only has to begin.
#[derive(Debug)]
pub(super) struct Shim {
    purpose: Purpose,
    runtime: Runtime,
    listener: UnixListener,
    /// The socket's file, if it is ours to remove.
    file: Option<SocketFile>,
}

/// Serves in this process, on `-socket` or on the socket that we were started with.
pub(super) fn inherited(args: Args) -> Result<()> {
    let (listener, file) = match &args.socket {
        Some(path) => {
            if path.as_os_str().len() > socket::MAX_PATH {
                let message =
                    format!("-socket {} is longer than {}", path.display(), socket::MAX_PATH);
                return Err(Error::new(Code::InvalidArgument, message));
            }
            let Bound { listener, file } = socket::bind(path)
                .map_err(|error| Error::io(format!("listen on {}", path.display()), error))?;
            (listener, Some(file))
        }
        None => {
            let fd = process::inherited(LISTENER_FD).map_err(|error| {
                Error::io(format!("no socket on descriptor {LISTENER_FD}"), error)
            })?;
            (fd.into(), None)
        }
    };
    let purpose = Purpose {
        namespace: args.namespace,
        id: args.id,
        debug: args.debug,
        events: env::var(ENV_TTRPC_ADDRESS).unwrap_or_default(),
    };
    Shim::new(purpose, listener, file)?.run(|| Ok(()))
}

/// Leaves the starter's streams, first of all, since containerd waits for these to close; and its session.
fn detach() -> Result<()> {
    super::leave_streams()?;
    nix::unistd::setsid().map_err(|errno| Error::io("leave the session", errno))?;
    // A wrong title is no reason not to serve.
    let _ = title::set(&visible_arguments());
    Ok(())
}

/// The arguments that belong to a serving shim, of those that this process was started with.
fn visible_arguments() -> Vec<OsString> {
    let mut shown = Vec::new();
    let mut words = env::args_os();
    shown.extend(words.next());
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-publish-binary" | "--publish-binary" | "-bundle" | "--bundle") => {
                words.next();
            }
            Some("start") => break,
            _ => shown.push(word),
        }
    }
    shown
}

impl Shim {
    /// Opens everything that a shim needs. It may be forked after that: its runtime has no thread yet.
    pub(super) fn new(
        purpose: Purpose,
        listener: StdUnixListener,
        file: Option<SocketFile>,
    ) -> Result<Self> {
        small_heap::frugal();
        // Without them the runtime would panic.
        process::enough_descriptors(DESCRIPTORS)
            .map_err(|error| Error::io("open what a shim needs", error))?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::io("make the runtime", error))?;
        let inside = runtime.enter();
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener))
            .map_err(|error| Error::io("prepare the socket", error))?;
        drop(inside);
        Ok(Self { purpose, runtime, listener, file })
    }

    /// Serves in a process forked by `start`, at whose word it begins to.
    pub(super) fn run_forked(self, starter: ToStarter) -> End {
        let file = self.file.clone();
        match detach().and_then(|()| self.run(|| starter.wait_for_word())) {
            Ok(()) => End::Success,
            Err(error) => {
                tracing::error!(%error, "the shim does not serve");
                if let Some(file) = file {
                    file.remove();
                }
                address::remove(Path::new("."));
                End::Failure
            }
        }
    }

    /// Prepares itself, waits for `word`, and serves until it is told to end.
    fn run(self, word: impl FnOnce() -> io::Result<()>) -> Result<()> {
        process::become_subreaper().map_err(|error| Error::io("become a subreaper", error))?;
        // Without a log the shim does its work all the same.
        let _ = open_log();
        Log::new(self.purpose.debug).install();
        let inside = self.runtime.enter();
        let signals = Signals::listen().map_err(|error| Error::io("listen for signals", error))?;
        let reaper = Reaper::new();
        let children = reaper.listen().map_err(|error| Error::io("listen for children", error))?;
        drop(inside);
        word().map_err(|error| Error::io("wait for the starter's word", error))?;
        let Self { purpose, runtime, listener, file } = self;
        runtime.spawn(children);
        runtime.block_on(serve_until_told(purpose, listener, file, signals, reaper));
        runtime.shutdown_background();
        Ok(())
    }
}

/// Makes the bundle's fifo `log` our stderr, so that even a panic is read by the manager. Writes
/// never wait: nobody may be reading.
fn open_log() -> io::Result<()> {
    let open = |write_only: bool| {
        File::options()
            .read(!write_only)
            .write(true)
            .custom_flags((OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits())
            .open("log")
    };
    // Without a reader now the fifo cannot be opened for writing alone.
    let log = open(true).or_else(|_| open(false))?;
    nix::unistd::dup2_stderr(&log)?;
    Ok(())
}

async fn serve_until_told(
    purpose: Purpose,
    listener: UnixListener,
    file: Option<SocketFile>,
    signals: Signals,
    reaper: Reaper,
) {
    let publisher = Publisher::new(&purpose.namespace);
    let registry = Registry::default();
    let shared = Shared {
        namespace: purpose.namespace.as_str().into(),
        reaper,
        publisher: publisher.clone(),
    };
    let service = TaskService::new(shared, registry.clone());
    tokio::spawn(publisher.clone().run(purpose.events));
    let server = tokio::spawn(server::serve(listener, Arc::new(service)));
    tracing::debug!(id = purpose.id, "serving");
    tokio::select! {
        () = registry.closed() => {}
        () = signals.until_told_to_end(&registry, &publisher) => {}
    }
    // Whoever comes from now on shall find no socket, and start a new shim.
    if let Some(file) = file {
        file.remove();
    }
    server.abort();
    if !publisher.drain(LAST_EVENTS).await {
        let lost = publisher.backlog();
        tracing::error!(id = purpose.id, lost, "events could not be published before the end");
    }
}

/// The signals that a shim answers to. SIGPIPE is ignored by every Rust program.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    report: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            report: signal(SignalKind::user_defined1())?,
        })
    }

    /// Returns at SIGTERM or SIGINT; logs what there is at SIGUSR1.
    async fn until_told_to_end(mut self, registry: &Registry, publisher: &Publisher) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.report.recv() => {
                    tracing::info!(backlog = publisher.backlog(), "events waiting");
                    for container in registry.all() {
                        container.report();
                    }
                }
            }
        }
    }
}
