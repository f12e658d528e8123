//! The registry of shims: start, join, find, shut down. It knows nothing of tasks.
//!
//! An id is taken from the moment somebody wants to make something of it until nothing is left of
//! it on the host, bundle included. A [`Reservation`] is that claim; dropping it frees the id.

mod abandon;
mod launch;

pub(crate) use abandon::farewell;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use runtime_proto::{
    bootstrap::Bootstrap,
    errdefs::Code,
    types::{Any, RuntimeInfo},
};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::{
    config::Config,
    error::{Error, Result},
    id::{Key, Namespace},
    runtime_path::Resolver,
    shim::Shim,
    shim_binary::{Eras, ShimBinary},
    shim_users::{Use, Users},
    state_lock::StateLock,
};

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
    /// Shims of bundles that could not be judged: in use, for all that is known. A plain lock, as
    /// that.
    kept: Mutex<HashMap<Key, Use>>,
    /// Given back with the last handle: from then on, another manager may work here.
    _lock: StateLock,
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
    /// Dropped when it is known what the id is.
    undecided: Option<watch::Sender<()>>,
}

impl ShimManager {
    /// A registry without entries, which claims the state directory.
    ///
    /// # Errors
    /// When the configuration cannot work, or another manager has claimed the directory.
    pub fn new(config: Config) -> Result<Arc<Self>> {
        config.check()?;
        let lock = StateLock::take(&config.state)?;
        Self::with_lock(config, lock)
    }

    /// The same, for who has claimed the state directory of `config` before.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn with_lock(config: Config, lock: StateLock) -> Result<Arc<Self>> {
        config.check()?;
        Ok(Arc::new(Self {
            resolver: Resolver::new(config.search.clone()),
            config,
            eras: Eras::default(),
            slots: Mutex::default(),
            cleaners: Semaphore::new(MAX_CLEANERS),
            users: Users::default(),
            kept: Mutex::default(),
            _lock: lock,
        }))
    }

    /// The surroundings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn users(&self) -> Users {
        self.users.clone()
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<Key, Use>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the shim of a bundle be that cannot be judged, whatever others at its address come to.
    pub(crate) fn keep(&self, key: &Key, location: &Bootstrap) {
        let mut using = self.users.begin(&location.address, false);
        using.settle();
        self.kept().insert(key.clone(), using);
    }

    /// Ends that, once it is known what the bundle is.
    pub(crate) fn keep_no_more(&self, key: &Key) {
        self.kept().remove(key);
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
        Ok(Reservation { manager: Arc::clone(self), key: Some(key.clone()), undecided: decided })
    }

    /// The shim of this id.
    pub fn get(&self, key: &Key) -> Option<Arc<Shim>> {
        match self.slots().get(key) {
            Some(Slot::Live(shim)) => Some(Arc::clone(shim)),
            _ => None,
        }
    }

    /// Whether somebody has claimed this id, or it is an entry.
    pub(crate) fn is_taken(&self, key: &Key) -> bool {
        self.slots().contains_key(key)
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
    pub fn resolve(&self, runtime: &str) -> Result<PathBuf> {
        self.resolver.resolve(runtime)
    }

    /// Where a shim binary is now: an upgrade may have moved it.
    pub(crate) fn present(&self, path: &Path) -> Option<PathBuf> {
        self.resolver.present(path)
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
}

impl Reservation {
    /// The claimed id.
    pub fn key(&self) -> &Key {
        // Set from the beginning; only `commit`, which consumes the claim, takes it.
        self.key.as_ref().expect("a reservation holds its key until it is consumed")
    }

    /// Tells those that wait for it that nothing more than what is left is there. The id stays
    /// taken.
    pub(crate) fn decide(&mut self) {
        self.undecided.take();
    }

    /// Makes the claim an entry.
    pub fn commit(mut self, shim: Arc<Shim>) {
        if let Some(key) = self.key.take() {
            shim.settle();
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
