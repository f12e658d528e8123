//! The daemon: claims, binds, loads, serves, and stops with the containers left running.

use std::{io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use runtime_v2::{Environment, Loading, StateLock, TaskManager};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use crate::{
    config::Settings,
    containerd::Containerd,
    events::{self, Publisher},
    introspection::Introspection,
    listen::Socket,
    metrics::{Endpoint, Metrics},
    notify::{READY, STOPPING, notify},
    server::Server,
    stores::Records,
    tasks::Tasks,
};

/// For creations and deletions that have begun. What does not end by then is found again by the
/// next start; service managers give 90 s.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// Something of the system.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The manager.
    #[error(transparent)]
    Manager(#[from] runtime_v2::Error),
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    |source| ServeError::Io { what, source }
}

/// Everything that can be refused, taken before the first thread is started.
#[derive(Debug)]
pub(crate) struct Claims {
    lock: StateLock,
    socket: Socket,
    endpoint: Option<Endpoint>,
}

impl Claims {
    /// Claims the state directory and binds the sockets. Clients may connect from here on; they
    /// are served when the shims are loaded.
    ///
    /// # Errors
    /// When any of it belongs to another process.
    pub(crate) fn take(settings: &Settings) -> Result<Self, ServeError> {
        let lock = StateLock::take(&settings.state)?;
        let endpoint = settings.metrics.map(bind_metrics).transpose()?;
        let socket = Socket::bind(&settings.address, settings.socket_mode, settings.socket_gid)
            .map_err(io_error(format!("listen at {}", settings.address.display())))?;
        Ok(Self { lock, socket, endpoint })
    }
}

/// Binds the address of metrics.
///
/// # Errors
/// When somebody listens there, or nobody can.
pub(crate) fn bind_metrics(address: SocketAddr) -> Result<Endpoint, ServeError> {
    Endpoint::bind(address).map_err(io_error(format!("serve metrics at {address}")))
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// When it cannot begin to serve.
pub(crate) async fn serve(settings: &Settings, claims: Claims) -> Result<(), ServeError> {
    let Claims { lock, mut socket, endpoint } = claims;
    let stopped = stop_signal()?;
    let address: Arc<Path> = settings.containerd.as_path().into();
    let containerd = Containerd::new(Arc::clone(&address));
    let metrics = Arc::new(Metrics::default());
    let manager = manager(settings, lock, &containerd, &metrics)?;
    let mut background = Background::default();
    background.spawn(events::observe(containerd.clone(), manager.clone(), Arc::clone(&metrics)));
    load(&manager, &metrics, &mut background).await?;
    if let Some(endpoint) = endpoint {
        let (metrics, manager) = (Arc::clone(&metrics), manager.clone());
        background.spawn(endpoint.serve(metrics, manager));
    }
    let listener = socket.listener().map_err(io_error("listen"))?;
    let introspection = Introspection::new(manager.clone(), containerd.clone());
    let tasks = Arc::new(Tasks::new(manager.clone(), containerd, metrics));
    let (stop, stopping) = watch::channel(false);
    let server = Server::new(tasks, introspection, address);
    let serving = server.serve(listener, stopping, settled(manager));
    tracing::info!(
        address = %settings.address.display(),
        containerd = %settings.containerd.display(),
        state = %settings.state.display(),
        "serving"
    );
    notify(READY);
    let socket = &socket;
    let stopper = async move {
        let name = stopped.await;
        tracing::info!(signal = name, "stopping; containers go on");
        notify(STOPPING);
        socket.unlink();
        stop.send_replace(true);
    };
    tokio::join!(serving, stopper);
    Ok(())
}

fn manager(
    settings: &Settings,
    lock: StateLock,
    containerd: &Containerd,
    metrics: &Arc<Metrics>,
) -> Result<TaskManager, ServeError> {
    let records = Arc::new(Records::new(containerd.clone()));
    let environment = Environment {
        containers: Arc::clone(&records) as _,
        sandboxes: records,
        mounts: Arc::new(containerd.clone()),
        events: Arc::new(Publisher::new(containerd.clone(), Arc::clone(metrics))),
    };
    Ok(TaskManager::with_lock(settings.manager(), lock, environment)?)
}

/// Finds the shims of an earlier daemon again. The slow ones are waited for in the background;
/// nothing about them can be asked before their fate is known.
async fn load(
    manager: &TaskManager,
    metrics: &Arc<Metrics>,
    background: &mut Background,
) -> Result<(), ServeError> {
    let mut loading = manager.load().await?;
    loading.ready().await;
    background.spawn(finish(loading, Arc::clone(metrics), manager.clone()));
    Ok(())
}

/// Waits for the end of a load, and counts what it has found.
pub(crate) async fn finish(loading: Loading, metrics: Arc<Metrics>, manager: TaskManager) {
    match loading.finish().await {
        Ok(report) => metrics.loaded(&report, &manager),
        Err(error) => tracing::error!(%error, "the load did not come to its end"),
    }
}

async fn settled(manager: TaskManager) {
    if timeout(SETTLE_TIMEOUT, manager.settled()).await.is_err() {
        tracing::warn!("something is still under way; the next start goes on from there");
    }
}

/// What runs beside the server; ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Background {
    tasks: Vec<JoinHandle<()>>,
}

impl Background {
    /// Runs it until the end.
    pub(crate) fn spawn(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(tokio::spawn(work));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Resolves to the name of the signal that says stop. Installed at once, so that one which comes
/// early is not lost.
pub(crate) fn stop_signal() -> Result<impl Future<Output = &'static str>, ServeError> {
    let install = |kind| signal(kind).map_err(io_error("install a signal handler"));
    let (mut terminate, mut interrupt) =
        (install(SignalKind::terminate())?, install(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
