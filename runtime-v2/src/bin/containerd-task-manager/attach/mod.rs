//! `attach`: the task manager of one containerd, which is called by the plugin that stands where
//! containerd's own task plugin stood. What both say to each other is in the crate `proto`,
//! `manager/v1/manager.proto`.
//!
//! * `call`: who calls, and errors as containerd words them.
//! * `records`, `surroundings`: what `Load` tells.
//! * `place`: the manager, once it has been told where.
//! * `tasks`: the service of one task. `manager`: that of all of them, and `create`, its longest
//!   call; `restore`: what that does for a container that comes out of CRI's checkpoint.
//! * `service`: which call is whose.

mod call;
mod create;
mod manager;
mod place;
mod records;
mod restore;
mod service;
mod surroundings;
mod tasks;

use std::{
    fs::File,
    future::pending,
    io::{self, Read, Write, stdin, stdout},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use runtime_v2::ttrpc;
use tokio::sync::{oneshot, watch};

use crate::{
    config::LogFormat,
    listen::Socket,
    logging::Verbosity,
    metrics::Endpoint,
    serve::{ServeError, bind_metrics, io_error, stop_signal},
};
use place::Place;
use service::Service;

/// What the plugin says when it starts this; everything else comes by `Load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Socket to serve
    #[arg(long, value_name = "SOCKET")]
    address: PathBuf,
    /// Stop when standard input ends; containers go on
    #[arg(long)]
    until_eof: bool,
    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9464 [default: none]
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// What to log: error, warn, info, debug, trace, or a filter by module
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: String,
    /// How to log: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// Only containerd's own user calls.
const SOCKET_MODE: u32 = 0o600;

/// What is said on standard output when clients may connect.
const READY: &[u8] = b"ready\n";

/// For creations and deletions that have begun. What does not end by then is found again by the
/// next manager, which a containerd that restarts is already waiting for.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is listened on.
#[derive(Debug)]
pub(crate) struct Claims {
    socket: Socket,
    endpoint: Option<Endpoint>,
}

impl Claims {
    /// Binds the sockets. To be called while the process has one thread.
    ///
    /// # Errors
    /// When somebody listens there, or nobody can.
    pub(crate) fn take(options: &Options) -> Result<Self, ServeError> {
        let endpoint = options.metrics.map(bind_metrics).transpose()?;
        let path = &options.address;
        let socket = Socket::bind(path, SOCKET_MODE, None)
            .map_err(io_error(format!("listen at {}", path.display())))?;
        Ok(Self { socket, endpoint })
    }
}

/// Serves until it is told to stop.
///
/// # Errors
/// When it cannot begin to serve, or the socket fails.
pub(crate) async fn serve(
    options: &Options,
    claims: Claims,
    verbosity: Verbosity,
) -> Result<(), ServeError> {
    let Claims { mut socket, endpoint } = claims;
    let signalled = stop_signal()?;
    let ended = until_eof(options.until_eof).map_err(io_error("watch standard input"))?;
    let (stop, stopping) = watch::channel(false);
    let place = Arc::new(Place::new(verbosity, stopping, endpoint));
    let listener = socket.listener().map_err(io_error("listen"))?;
    let serving = ttrpc::serve(listener, Arc::new(Service::new(Arc::clone(&place))));
    say_ready().map_err(io_error("close standard output"))?;
    tracing::info!(address = %options.address.display(), "waiting for containerd");
    let why = tokio::select! {
        served = serving => return served.map_err(io_error("serve")),
        signal = signalled => signal,
        () = ended => "end of standard input",
    };
    // Connections are closed: creations that are under way undo themselves, deletions end.
    tracing::info!(why, "stopping; containers go on");
    socket.unlink();
    stop.send_replace(true);
    if tokio::time::timeout(SETTLE_TIMEOUT, place.settled()).await.is_err() {
        tracing::warn!("something is still under way; the next manager goes on from there");
    }
    Ok(())
}

/// Tells whoever started this that clients may connect, and that nothing else will be said here.
fn say_ready() -> io::Result<()> {
    let mut out = stdout();
    // One that does not listen need not know.
    let _ = out.write_all(READY).and_then(|()| out.flush());
    let null = File::options().write(true).open("/dev/null")?;
    Ok(nix::unistd::dup2_stdout(&null)?)
}

/// Resolves when standard input ends, or never if it is not looked at.
///
/// The thread that reads it has no other end than that or the process's: unlike one of the
/// runtime's own, it holds nobody up.
fn until_eof(look: bool) -> io::Result<impl Future<Output = ()>> {
    let (end, ended) = oneshot::channel();
    if look {
        thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut input = stdin().lock();
            let mut ignored = [0; 64];
            while matches!(input.read(&mut ignored), Ok(1..)) {}
            // Nobody waits any more when the process is ending anyway.
            let _ = end.send(());
        })?;
    }
    Ok(async move {
        if look {
            // Without the thread there is no end either.
            let _ = ended.await;
        } else {
            pending().await
        }
    })
}
