//! The manager, once containerd has told it where it works.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use runtime_proto::{
    manager::{LoadRequest, LoadResponse, PROTOCOL, Version},
    ttrpc::Status,
};
use runtime_v2::{Code, Environment, Loading, StateLock, TaskManager};
use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

use super::{call::status, records::Records, surroundings::Surroundings};
use crate::{
    containerd::Containerd,
    events::{self, Publisher},
    logging::Verbosity,
    metrics::{Endpoint, Metrics},
    serve::{Background, finish},
};

/// For an earlier manager that is just ending, which has its own budget to settle in.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);

/// Where a manager is, or will be.
#[derive(Debug)]
pub(super) struct Place {
    attached: OnceLock<Attached>,
    /// Held by whoever loads; others wait for the outcome.
    loading: Mutex<()>,
    verbosity: Verbosity,
    stopping: watch::Receiver<bool>,
    pub(super) metrics: Arc<Metrics>,
    /// Whoever asks for metrics before there is a manager waits for it.
    endpoint: std::sync::Mutex<Option<Endpoint>>,
}

/// A manager in its surroundings.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) manager: TaskManager,
    pub(super) records: Arc<Records>,
    surroundings: Surroundings,
    background: Background,
}

impl Place {
    /// A place without a manager.
    pub(super) fn new(
        verbosity: Verbosity,
        stopping: watch::Receiver<bool>,
        endpoint: Option<Endpoint>,
    ) -> Self {
        Self {
            attached: OnceLock::new(),
            loading: Mutex::default(),
            verbosity,
            stopping,
            metrics: Arc::default(),
            endpoint: std::sync::Mutex::new(endpoint),
        }
    }

    /// The manager.
    ///
    /// # Errors
    /// `Unavailable` before the first load has been answered.
    pub(super) fn attached(&self) -> Result<&Attached, Status> {
        self.attached.get().ok_or_else(|| {
            Code::Unavailable.status("the task manager has not been told its surroundings")
        })
    }

    /// Waits until everything that has begun is over.
    pub(super) async fn settled(&self) {
        if let Some(attached) = self.attached.get() {
            attached.manager.settled().await;
        }
    }

    /// Loads, or finds that this has been done. A caller that goes away changes nothing about it.
    ///
    /// # Errors
    /// `FailedPrecondition` if this caller cannot be served; otherwise what has failed.
    pub(super) async fn load(
        self: &Arc<Self>,
        request: LoadRequest,
    ) -> Result<LoadResponse, Status> {
        let theirs = Version { major: request.protocol_major, minor: request.protocol_minor };
        if !PROTOCOL.understands(theirs) {
            let (ours, theirs) = (PROTOCOL.major, theirs.major);
            let text = format!("protocol version {theirs} is not spoken here, {ours} is");
            return Err(Code::FailedPrecondition.status(&text));
        }
        let this = Arc::clone(self);
        tokio::spawn(async move { this.load_once(request).await })
            .await
            .unwrap_or_else(|_| Err(Code::Internal.status("the load was cut off")))
    }

    async fn load_once(&self, request: LoadRequest) -> Result<LoadResponse, Status> {
        let surroundings = Surroundings::of(&request)?;
        let _turn = self.loading.lock().await;
        if let Some(attached) = self.attached.get() {
            if attached.surroundings != surroundings {
                let text = "the task manager works in other surroundings";
                return Err(Code::FailedPrecondition.status(text));
            }
            return Ok(response(&attached.manager, 0));
        }
        if request.debug {
            self.verbosity.debug();
        }
        let (mut attached, mut loading) = self.attach(surroundings, request).await?;
        loading.ready().await;
        let response = response(&attached.manager, loading.lost());
        let records = Arc::clone(&attached.records);
        let finish = finish(loading, Arc::clone(&self.metrics), attached.manager.clone());
        attached.background.spawn(async move {
            finish.await;
            // Whatever became of it, it asks for no records any more.
            records.loaded();
        });
        let endpoint = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(endpoint) = endpoint {
            let (metrics, manager) = (Arc::clone(&self.metrics), attached.manager.clone());
            attached.background.spawn(endpoint.serve(metrics, manager));
        }
        // Only whoever holds the turn sets it.
        let _ = self.attached.set(attached);
        Ok(response)
    }

    async fn attach(
        &self,
        surroundings: Surroundings,
        mut request: LoadRequest,
    ) -> Result<(Attached, Loading), Status> {
        let config = surroundings.config(&request)?;
        let lock = claim(surroundings.state().to_path_buf()).await?;
        let containerd = Containerd::new(surroundings.containerd().into());
        let (containers, sandboxes) =
            (std::mem::take(&mut request.containers), std::mem::take(&mut request.sandboxes));
        let records = Arc::new(Records::new(containers, sandboxes));
        let publisher = Publisher::new(containerd.clone(), Arc::clone(&self.metrics));
        let environment = Environment {
            containers: Arc::clone(&records) as _,
            sandboxes: Arc::clone(&records) as _,
            // containerd is still starting, and its sockets come up when this is answered.
            events: Arc::new(publisher.until(self.stopping.clone())),
            mounts: Arc::new(containerd.clone()),
        };
        let manager =
            TaskManager::with_lock(config, lock, environment).map_err(|error| status(&error))?;
        let mut background = Background::default();
        background.spawn(events::observe(containerd, manager.clone(), Arc::clone(&self.metrics)));
        let loading = manager.load().await.map_err(|error| status(&error))?;
        tracing::info!(state = %surroundings.state().display(), version = request.containerd_version, "attached");
        let attached = Attached { manager, records, surroundings, background };
        Ok((attached, loading))
    }
}

fn response(manager: &TaskManager, removed: usize) -> LoadResponse {
    let mut response = LoadResponse::new();
    (response.protocol_major, response.protocol_minor) = (PROTOCOL.major, PROTOCOL.minor);
    env!("CARGO_PKG_VERSION").clone_into(&mut response.version);
    response.tasks = u32::try_from(manager.list(None).len()).unwrap_or(u32::MAX);
    response.removed = u32::try_from(removed).unwrap_or(u32::MAX);
    response
}

/// Claims the state directory, once an earlier manager has given it back.
async fn claim(state: PathBuf) -> Result<StateLock, Status> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let state = state.clone();
        let taken = tokio::task::spawn_blocking(move || StateLock::take(&state)).await;
        match taken.map_err(|_| Code::Internal.status("the claim was cut off"))? {
            Err(error) if error.kind() == Code::FailedPrecondition && Instant::now() < deadline => {
            }
            taken => return taken.map_err(|error| status(&error)),
        }
    }
}
