//! Being the shim: one thread, one runtime, one socket.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Write},
    net::Shutdown,
    os::unix::{
        fs::OpenOptionsExt,
        net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use nix::fcntl::OFlag;
use runtime_proto::{bootstrap::ENV_TTRPC_ADDRESS, errdefs::Code};
use tokio::{
    io::AsyncReadExt,
    net::{UnixListener, UnixStream},
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use super::{
    args::Args,
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
    sys::{memory, process, title},
};

/// What a shim says to its starter when it serves.
pub(super) const READY: &str = "ready";
/// What the starter says then, when it has answered.
pub(super) const ANSWERED: &[u8] = b"!";
/// The descriptor of the socket for a shim that is not forked by us.
const LISTENER_FD: i32 = 3;

/// What the runtime opens for itself, and some more.
const DESCRIPTORS: i32 = 16;

/// How long the last events may take at the end. containerd waits 3 s for a shim to go, an init
/// system 90 s; a containerd that is away for longer learns of the exits from `delete`.
const LAST_EVENTS: Duration = Duration::from_secs(4);

/// What a shim needs to serve.
#[derive(Debug)]
pub(super) struct Serve {
    pub(super) namespace: String,
    pub(super) id: String,
    pub(super) debug: bool,
    /// containerd's ttrpc socket.
    pub(super) events: String,
    pub(super) listener: StdUnixListener,
    /// The socket's file, if it is ours to remove.
    pub(super) file: Option<SocketFile>,
}

/// Serves in a process forked by `start`, which reads from `starter` that we serve, or why not.
pub(super) fn forked(serve: Serve, starter: StdUnixStream) -> ExitCode {
    let mut starter = Some(starter);
    match detach().and_then(|()| run(serve, &mut starter)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(mut starter) = starter {
                // It reads it, unless it is gone.
                let _ = starter.write_all(error.to_string().as_bytes());
            }
            tracing::error!(%error, "the shim cannot serve");
            ExitCode::FAILURE
        }
    }
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
    let serve = Serve {
        namespace: args.namespace,
        id: args.id,
        debug: args.debug,
        events: env::var(ENV_TTRPC_ADDRESS).unwrap_or_default(),
        listener,
        file,
    };
    run(serve, &mut None)
}

/// Leaves the starter's session and streams; containerd waits for these to close.
fn detach() -> Result<()> {
    nix::unistd::setsid().map_err(|errno| Error::io("leave the session", errno))?;
    super::leave_streams()?;
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

fn run(serve: Serve, starter: &mut Option<StdUnixStream>) -> Result<()> {
    let file = serve.file.clone();
    run_with_socket(serve, starter).inspect_err(|_| {
        // The starter does the same, unless it is gone.
        if let Some(file) = file {
            file.remove();
        }
    })
}

fn run_with_socket(serve: Serve, starter: &mut Option<StdUnixStream>) -> Result<()> {
    memory::frugal();
    // Without them the runtime would panic.
    process::enough_descriptors(DESCRIPTORS)
        .map_err(|error| Error::io("open what a shim needs", error))?;
    process::become_subreaper().map_err(|error| Error::io("become a subreaper", error))?;
    // Without a log the shim does its work all the same.
    let _ = open_log();
    Log::new(serve.debug).install();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("make the runtime", error))?;
    let done = runtime.block_on(serve_until_told(serve, starter));
    Runtime::shutdown_background(runtime);
    done
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

async fn serve_until_told(serve: Serve, starter: &mut Option<StdUnixStream>) -> Result<()> {
    let failed = |doing: &'static str| move |error: io::Error| Error::io(doing, error);
    let reaper = Reaper::new();
    let publisher = Publisher::new(&serve.namespace);
    let registry = Registry::default();
    let shared = Shared {
        namespace: serve.namespace.as_str().into(),
        reaper: reaper.clone(),
        publisher: publisher.clone(),
    };
    let service = TaskService::new(shared, registry.clone());
    let signals = Signals::listen().map_err(failed("listen for signals"))?;
    serve.listener.set_nonblocking(true).map_err(failed("prepare the socket"))?;
    let listener = UnixListener::from_std(serve.listener).map_err(failed("prepare the socket"))?;
    tokio::spawn(reaper.listen().map_err(failed("listen for children"))?);
    tokio::spawn(publisher.clone().run(serve.events));
    let server = tokio::spawn(server::serve(listener, Arc::new(service)));
    if let Some(mut starter) = starter.take() {
        let told =
            starter.write_all(READY.as_bytes()).and_then(|()| starter.shutdown(Shutdown::Write));
        told.map_err(failed("tell the starter"))?;
        tokio::spawn(end_unless_known(starter, registry.clone()));
    }
    tracing::debug!(id = serve.id, "serving");
    tokio::select! {
        () = registry.closed() => {}
        () = signals.until_told_to_end(&registry, &publisher) => {}
    }
    // Whoever comes from now on shall find no socket, and start a new shim.
    if let Some(file) = serve.file {
        file.remove();
    }
    server.abort();
    if !publisher.drain(LAST_EVENTS).await {
        let lost = publisher.backlog();
        tracing::error!(id = serve.id, lost, "events could not be published before the end");
    }
    Ok(())
}

/// Ends a shim that nobody knows of: its starter was killed before it had answered.
async fn end_unless_known(starter: StdUnixStream, registry: Registry) {
    // Where it cannot be waited for, it is taken to have answered.
    if starter.set_nonblocking(true).is_err() {
        return;
    }
    let Ok(mut starter) = UnixStream::from_std(starter) else { return };
    if starter.read_u8().await.is_err() {
        tracing::warn!("the starter is gone, and has told nobody of this shim");
        registry.close_if_empty();
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
