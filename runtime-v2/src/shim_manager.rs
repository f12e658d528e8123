//! The registry of shims: start, join, find, shut down. It knows nothing of tasks.
//!
//! An id is taken from the moment somebody wants to make something of it until nothing is left of
//! it on the host, bundle included. A [`Reservation`] is that claim; dropping it frees the id.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use runtime_proto::{
    bootstrap::Bootstrap,
    errdefs::Code,
    task::ShutdownRequest,
    types::{Any, Empty, RuntimeInfo},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::timeout,
};

use crate::{
    bundle::Bundle,
    client::TaskClient,
    config::Config,
    error::{Error, Result},
    id::{Key, Namespace},
    runtime_path::Resolver,
    shim::{Origin, Parts, SHUTDOWN_TIMEOUT, Shim},
    shim_binary::{Eras, ShimBinary},
    shim_log::ShimLog,
    shim_users::Users,
    socket_file, stray,
};

/// For a shim that has just said where it is. One in a virtual machine may still be booting; a
/// local one answers at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(100);

/// For asking a shim that is unwanted to go; the next means is a signal.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// Binaries run for `delete` at one time. Each forks and runs an OCI runtime; the shim of a large
/// pod takes hundreds of containers along when it dies.
const MAX_CLEANERS: usize = 16;

/// The registry of shims.
#[derive(Debug)]
pub struct ShimManager {
    config: Config,
    resolver: Resolver,
    eras: Eras,
    /// A plain lock: held for lookups and entries only.
    slots: Mutex<HashMap<Key, Slot>>,
    cleaners: Semaphore,
    users: Users,
}

#[derive(Debug)]
enum Slot {
    /// Taken by somebody who makes it, or ends it.
    Reserved,
    /// Taken until it is known what it is; the channel closes then.
    Examined(watch::Receiver<()>),
    Live(Arc<Shim>),
}

/// A claim on an id. Dropping it frees the id; [`Reservation::commit`] makes it an entry.
#[derive(Debug)]
pub struct Reservation {
    manager: Arc<ShimManager>,
    key: Option<Key>,
    _decided: Option<watch::Sender<()>>,
}

impl ShimManager {
    /// A registry without entries.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        config.check()?;
        Ok(Arc::new(Self {
            resolver: Resolver::new(config.search.clone()),
            config,
            eras: Eras::default(),
            slots: Mutex::default(),
            cleaners: Semaphore::new(MAX_CLEANERS),
            users: Users::default(),
        }))
    }

    /// The surroundings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn users(&self) -> Users {
        self.users.clone()
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Key, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims an id, to make something of it.
    ///
    /// # Errors
    /// `AlreadyExists` if it is taken.
    pub fn reserve(self: &Arc<Self>, key: &Key) -> Result<Reservation> {
        self.claim(key, Slot::Reserved, None)
    }

    /// Claims an id, to find out what is there already.
    ///
    /// # Errors
    /// `AlreadyExists` if it is taken.
    pub(crate) fn reserve_to_examine(self: &Arc<Self>, key: &Key) -> Result<Reservation> {
        let (decided, undecided) = watch::channel(());
        self.claim(key, Slot::Examined(undecided), Some(decided))
    }

    fn claim(
        self: &Arc<Self>,
        key: &Key,
        slot: Slot,
        decided: Option<watch::Sender<()>>,
    ) -> Result<Reservation> {
        let mut slots = self.slots();
        if slots.contains_key(key) {
            return Err(Error::new(Code::AlreadyExists, format!("task {key} already exists")));
        }
        slots.insert(key.clone(), slot);
        Ok(Reservation { manager: Arc::clone(self), key: Some(key.clone()), _decided: decided })
    }

    /// The shim of this id.
    pub fn get(&self, key: &Key) -> Option<Arc<Shim>> {
        match self.slots().get(key) {
            Some(Slot::Live(shim)) => Some(Arc::clone(shim)),
            _ => None,
        }
    }

    /// Waits while it is being found out what an id is.
    pub(crate) async fn decided(&self, key: &Key) {
        let undecided = match self.slots().get(key) {
            Some(Slot::Examined(undecided)) => Some(undecided.clone()),
            _ => None,
        };
        if let Some(mut undecided) = undecided {
            // Nothing is ever sent: the error is the decision.
            let _ = undecided.changed().await;
        }
    }

    /// All shims, or those of one namespace, in no order.
    pub fn list(&self, namespace: Option<&Namespace>) -> Vec<Arc<Shim>> {
        let slots = self.slots();
        let live = slots.values().filter_map(|slot| match slot {
            Slot::Live(shim) => Some(shim),
            Slot::Reserved | Slot::Examined(_) => None,
        });
        live.filter(|shim| namespace.is_none_or(|wanted| *wanted == shim.key().namespace))
            .cloned()
            .collect()
    }

    /// Removes this very entry; false if it is not there any more.
    pub(crate) fn remove(&self, shim: &Arc<Shim>) -> bool {
        let mut slots = self.slots();
        let is_it =
            matches!(slots.get(shim.key()), Some(Slot::Live(live)) if Arc::ptr_eq(live, shim));
        is_it && slots.remove(shim.key()).is_some()
    }

    /// The shim binary of a runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed name, `NotFound` if it is not installed.
    pub fn resolve(&self, runtime: &str) -> Result<std::path::PathBuf> {
        self.resolver.resolve(runtime)
    }

    pub(crate) fn binary<'a>(&'a self, path: &'a Path) -> ShimBinary<'a> {
        ShimBinary { path, config: &self.config }
    }

    /// What a runtime says about itself.
    ///
    /// # Errors
    /// When there is no such runtime, or it cannot say.
    pub async fn info(&self, runtime: &str, options: Option<&Any>) -> Result<RuntimeInfo> {
        let path = self.resolve(runtime)?;
        self.binary(&path).info(options).await
    }

    /// A turn to run a binary for `delete`.
    pub(crate) async fn cleaner(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.cleaners.acquire().await.ok()
    }

    /// Starts a shim in a bundle and connects to it. What was started is ended again if anything
    /// about that fails; the bundle is the caller's.
    ///
    /// # Errors
    /// With what the shim itself said, where it said something.
    pub async fn start(
        &self,
        bundle: Bundle,
        binary: &Path,
        options: Option<&Any>,
    ) -> Result<Shim> {
        let mut answer = None;
        match self.start_steps(&bundle, binary, options, &mut answer).await {
            Ok(shim) => Ok(shim),
            Err(error) => {
                self.abandon(&bundle, Some(binary), answer.as_ref()).await;
                Err(error.within(format!("failed to start shim of {}", bundle.key())))
            }
        }
    }

    async fn start_steps(
        &self,
        bundle: &Bundle,
        binary: &Path,
        options: Option<&Any>,
        answer: &mut Option<Bootstrap>,
    ) -> Result<Shim> {
        let key = bundle.key();
        let log = ShimLog::open(&bundle.blocking(Bundle::log_fifo).await?, key)?;
        let started = self.binary(binary).start(&self.eras, key, bundle.path(), options).await?;
        let location = answer.insert(started).clone().supported().map_err(|error| {
            Error::caused(Code::Unimplemented, binary.display().to_string(), error)
        })?;
        let client = TaskClient::connect(&location, &key.namespace, CONNECT_TIMEOUT).await?;
        let (path, written) = (binary.to_path_buf(), location.clone());
        bundle
            .blocking(move |bundle| {
                bundle.write_binary_path(&path)?;
                bundle.write_bootstrap(&written)
            })
            .await?;
        Ok(Shim::new(Parts {
            bundle: bundle.clone(),
            location,
            client,
            binary: Some(binary.to_path_buf()),
            origin: Origin::Started,
            log: Some(log),
            users: self.users(),
        }))
    }

    /// Connects a bundle to the shim of its sandbox, without running a binary. The binary is
    /// noted all the same: it cleans up when that shim dies.
    ///
    /// # Errors
    /// When nobody answers there, or the bundle cannot be written.
    pub async fn join(
        &self,
        bundle: Bundle,
        binary: &Path,
        sandbox: &str,
        location: Bootstrap,
    ) -> Result<Shim> {
        let key = bundle.key();
        let client = TaskClient::connect(&location, &key.namespace, CONNECT_TIMEOUT)
            .await
            .map_err(|error| error.within(format!("{key} joins sandbox {sandbox}")))?;
        let (path, written, sandbox) = (binary.to_path_buf(), location.clone(), sandbox.to_owned());
        bundle
            .blocking(move |bundle| {
                bundle.write_sandbox(&sandbox)?;
                bundle.write_binary_path(&path)?;
                bundle.write_bootstrap(&written)
            })
            .await?;
        Ok(Shim::new(Parts {
            bundle,
            location,
            client,
            binary: Some(binary.to_path_buf()),
            origin: Origin::Joined,
            log: None,
            users: self.users(),
        }))
    }

    /// Ends what `start` has left in a bundle that will not be used: by request, if its address
    /// is known and it listens to reason, then by force. What others use is let be.
    pub(crate) async fn abandon(
        &self,
        bundle: &Bundle,
        binary: Option<&Path>,
        location: Option<&Bootstrap>,
    ) {
        match location {
            None => stray::make_sure(bundle, binary, None).await,
            Some(location) if self.users.any(&location.address) => {}
            Some(location) => {
                farewell(bundle.key(), location).await;
                self.bury(bundle, binary, Some(location)).await;
                self.remove_socket(location).await;
            }
        }
    }

    /// Makes sure that a shim which does not answer is gone, unless others use its process.
    pub(crate) async fn bury(
        &self,
        bundle: &Bundle,
        binary: Option<&Path>,
        location: Option<&Bootstrap>,
    ) {
        let address = location.map(|location| location.address.as_str());
        if address.is_some_and(|address| self.users.any(address)) {
            return;
        }
        stray::make_sure(bundle, binary, address).await;
    }

    /// Removes the socket of a shim that is gone, unless others use it.
    pub(crate) async fn remove_socket(&self, location: &Bootstrap) {
        if !self.users.any(&location.address) {
            socket_file::remove_of_ended(&location.address).await;
        }
    }
}

/// Asks an unwanted shim to go. Its version may be one we do not know; the request has not changed
/// since v2.
pub(crate) async fn farewell(key: &Key, location: &Bootstrap) {
    let known = Bootstrap { version: runtime_proto::bootstrap::MAX_VERSION, ..location.clone() };
    let Ok(client) = TaskClient::connect(&known, &key.namespace, FAREWELL_TIMEOUT).await else {
        return;
    };
    let mut request = ShutdownRequest::new();
    request.id = key.id.to_string();
    request.now = true;
    let asked = client.first::<_, Empty>("Shutdown", &request, Some(FAREWELL_TIMEOUT)).await;
    if asked.is_ok() {
        // The answer comes before the end; if that takes longer, force follows.
        let _ = timeout(SHUTDOWN_TIMEOUT, client.closed()).await;
    }
    client.close();
}

impl Reservation {
    /// The claimed id.
    pub fn key(&self) -> &Key {
        // Set from the beginning; only `commit`, which consumes the claim, takes it.
        self.key.as_ref().expect("a reservation holds its key until it is consumed")
    }

    /// Makes the claim an entry.
    pub fn commit(mut self, shim: Arc<Shim>) {
        if let Some(key) = self.key.take() {
            self.manager.slots().insert(key, Slot::Live(shim));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.manager.slots().remove(&key);
        }
    }
}
