//! Tasks on top of shims: create, find, list, delete.
//!
//! What changes the host runs in a task of its own: a caller that goes away, by a deadline or a
//! broken connection, changes nothing about a deletion, and makes a creation undo itself.

use std::{
    collections::HashMap,
    fmt, future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use runtime_proto::{errdefs::Code, events::Envelope};
use tokio::sync::{RwLock, oneshot, watch};
use tracing::Instrument;

use crate::{
    activation::MountActivator,
    config::Config,
    create::{self, Caller, CreateOptions},
    dead_shim, delete,
    error::{Error, Result},
    events::{self, EventSink},
    hearing::Hearing,
    id::{Key, Namespace},
    load::{self, Loading},
    observed::{self, End},
    shim_manager::{Reservation, ShimManager},
    state_lock::StateLock,
    stores::{ContainerStore, SandboxStore},
    task::{Entry, Exit, Task},
};

/// Ends that are kept of one id until there is an entry: those of a task, told twice perhaps, and of
/// the one before. A shim does not decide how much memory its manager uses.
const MAX_EARLY: usize = 8;

/// What a manager needs from whoever embeds it.
pub struct Environment {
    /// Records of containers.
    pub containers: Arc<dyn ContainerStore>,
    /// Records of sandboxes.
    pub sandboxes: Arc<dyn SandboxStore>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// Who makes the mounts that no shim can make; [`ShimMounts`](crate::ShimMounts) is nobody.
    pub mounts: Arc<dyn MountActivator>,
}

/// The task manager. Clones are handles on the same one. Dropping the last handle closes the
/// connections; shims and containers live on, to be loaded again.
#[derive(Debug, Clone)]
pub struct TaskManager {
    inner: Arc<Inner>,
}

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) shims: Arc<ShimManager>,
    pub(crate) environment: Environment,
    /// A plain lock: held for lookups and entries only.
    tasks: Mutex<Tasks>,
    /// Which events of shims are shown. A plain lock, as that.
    hearing: Mutex<Hearing>,
    /// Held for reading by everything that must come to its end.
    work: Arc<RwLock<()>>,
}

#[derive(Debug, Default)]
struct Tasks {
    entries: HashMap<Key, Arc<Entry>>,
    /// What was heard of ids that were taken then and no entries yet.
    early: HashMap<Key, Vec<End>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks().entries.len();
        f.debug_struct("TaskManager").field("tasks", &tasks).finish_non_exhaustive()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl TaskManager {
    /// A manager without tasks, which claims the state directory. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the configuration cannot work, or another manager has claimed the directory.
    pub fn new(config: Config, environment: Environment) -> Result<Self> {
        Ok(Self::over(ShimManager::new(config)?, environment))
    }

    /// The same, for who has claimed the state directory of `config` before.
    ///
    /// # Errors
    /// When the configuration cannot work.
    pub fn with_lock(config: Config, lock: StateLock, environment: Environment) -> Result<Self> {
        Ok(Self::over(ShimManager::with_lock(config, lock)?, environment))
    }

    fn over(shims: Arc<ShimManager>, environment: Environment) -> Self {
        let (tasks, hearing) = (Mutex::default(), Mutex::new(Hearing::Nothing));
        Self { inner: Arc::new(Inner { shims, environment, tasks, hearing, work: Arc::default() }) }
    }

    /// The shims below the tasks.
    pub fn shims(&self) -> &Arc<ShimManager> {
        &self.inner.shims
    }

    /// Finds the shims of an earlier manager again, and cleans up behind those that are lost. To
    /// be called once, before anything is created; ids that are still being looked at are taken.
    ///
    /// # Errors
    /// When the state directory cannot be read.
    pub async fn load(&self) -> Result<Loading> {
        load::load(Arc::clone(&self.inner)).await
    }

    /// Creates a task. If it fails, or the caller goes away, nothing is left of it.
    ///
    /// # Errors
    /// `AlreadyExists` if the id is taken, and then nothing is touched; otherwise with what the
    /// shim or the OCI runtime said.
    pub async fn create(&self, key: Key, options: CreateOptions) -> Result<Task> {
        self.create_until(key, options, future::pending()).await
    }

    /// The same for a caller that can give up and wait for what becomes of it: once `given_up` has
    /// resolved, what was begun is undone, and the answer comes when it is. A task that was there
    /// by then is given all the same.
    ///
    /// # Errors
    /// `Canceled` if it was undone; otherwise as [`Self::create`].
    pub async fn create_until(
        &self,
        key: Key,
        options: CreateOptions,
        given_up: impl Future<Output = ()>,
    ) -> Result<Task> {
        let reservation = self.reserve(&key).await?;
        // What was heard of an earlier creation of this id, which failed, says nothing of this one.
        self.inner.tasks().early.remove(&key);
        let (reply, mut created) = oneshot::channel();
        let (want, wanted) = watch::channel(());
        let caller = Caller::new(reply, wanted);
        let inner = Arc::clone(&self.inner);
        let work = Arc::clone(&inner.work).read_owned().await;
        let span = tracing::info_span!("create", namespace = %key.namespace, id = %key.id);
        let creating = async move {
            let _work = work;
            create::create(inner, reservation, options, caller).await;
        };
        tokio::spawn(creating.instrument(span));
        let created = tokio::select! {
            outcome = &mut created => outcome,
            () = given_up => {
                drop(want);
                created.await
            }
        };
        created.unwrap_or_else(|_| Err(cut_off("create", &key)))
    }

    /// Takes an id. A task that is deleted but for its bundle is nobody's to find, so whoever wants the
    /// id waits for the bundle to go, and goes on with that if it could not be removed then.
    async fn reserve(&self, key: &Key) -> Result<Reservation> {
        let taken = match self.inner.shims.reserve(key) {
            Err(error) if error.kind() == Code::AlreadyExists => error,
            reserved => return reserved,
        };
        if !self.inner.entry(key).is_some_and(|entry| entry.is_left_over()) {
            return Err(taken);
        }
        match self.delete(key).await {
            // Removed meanwhile by who was at it.
            Err(error) if error.kind() != Code::NotFound => {
                Err(error.with_kind(Code::AlreadyExists))
            }
            _ => self.inner.shims.reserve(key),
        }
    }

    /// A task by its id. While one of that id is being loaded, this waits for the outcome.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub async fn get(&self, key: &Key) -> Result<Task> {
        let entry = self.decided(key).await?;
        if entry.deleted().is_some() { Err(not_found(key)) } else { Ok(Task::new(entry)) }
    }

    /// The entry of an id, once a load that is under way knows what it is.
    async fn decided(&self, key: &Key) -> Result<Arc<Entry>> {
        let task = || self.inner.entry(key).filter(|entry| !entry.is_leaked());
        if task().is_none() {
            self.inner.shims.decided(key).await;
        }
        task().ok_or_else(|| not_found(key))
    }

    /// All tasks, or those of one namespace, in order of their ids.
    pub fn list(&self, namespace: Option<&Namespace>) -> Vec<Task> {
        let mut entries: Vec<_> = self
            .inner
            .tasks()
            .entries
            .iter()
            .filter(|(key, _)| namespace.is_none_or(|wanted| *wanted == key.namespace))
            .filter(|(_, entry)| entry.deleted().is_none())
            .map(|(key, entry)| (key.clone(), Arc::clone(entry)))
            .collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.into_iter().map(|(_, entry)| Task::new(entry)).collect()
    }

    /// Deletes a task that has ended: the container, its shim if that was its last, its bundle.
    ///
    /// May be called again after any failure, and goes on from there. A caller that gives up does
    /// not stop it. While a task of that id is being loaded, this waits for the outcome.
    ///
    /// # Errors
    /// `NotFound` if there is none, or if its shim had forgotten it already; what is left is
    /// removed all the same. Otherwise with what the shim said; then nothing was removed.
    pub async fn delete(&self, key: &Key) -> Result<Exit> {
        let entry = self.decided(key).await?;
        let inner = Arc::clone(&self.inner);
        let work = Arc::clone(&inner.work).read_owned().await;
        let span = tracing::info_span!("delete", namespace = %key.namespace, id = %key.id);
        let deleting = async move {
            let _work = work;
            delete::delete(&inner, &entry).await
        };
        tokio::spawn(deleting.instrument(span))
            .await
            .unwrap_or_else(|_| Err(cut_off("delete", key)))
    }

    /// Says which events are shown to [`observe`](Self::observe) from now on. Where it is not said,
    /// the first one that is shown says so for all that follow.
    pub fn hears(&self, hearing: Hearing) {
        *self.inner.lock_hearing() = hearing;
    }

    /// Learns from an event of a shim what the manager need not say again, should that shim die.
    /// To be called with every event that passes through the embedder, once it is handed on: what
    /// is noted before would be lost with an embedder that is killed in between.
    pub async fn observe(&self, event: &Envelope) {
        self.inner.begin_to_hear();
        let Some((key, end)) = observed::read(event) else { return };
        let entry = {
            let mut tasks = self.inner.tasks();
            let entry = tasks.entries.get(&key).cloned();
            if entry.is_none() && self.inner.shims.is_taken(&key) {
                // Of what is being made, or looked at, right now.
                self.inner.keep_early(&mut tasks, key, end.clone());
            }
            entry
        };
        if let Some(entry) = entry {
            // To its end, though the caller may go away: what is known and what is noted are one.
            let learning = tokio::spawn(async move { entry.learn(&end).await });
            let _ = learning.await;
        }
    }

    /// Hands on an event of a shim and learns from it, as one step: meanwhile nobody tells it in that
    /// shim's place, and what has been told before, by whomever, is not told again. It comes to its
    /// end though the caller may go away.
    ///
    /// # Errors
    /// Those of the sink; then the event is for the shim to send again.
    pub async fn relay(&self, event: Envelope, sink: Arc<dyn EventSink>) -> Result<()> {
        let manager = self.clone();
        let relaying = async move {
            let end = observed::read(&event);
            let entry = end.as_ref().and_then(|(key, _)| manager.inner.entry(key));
            let _telling = match &entry {
                Some(entry) => Some(entry.telling().await),
                None => None,
            };
            if entry.as_ref().zip(end.as_ref()).is_some_and(|(entry, (_, end))| entry.has_told(end))
            {
                return Ok(());
            }
            events::hand_on(&*sink, event.clone()).await?;
            manager.observe(&event).await;
            Ok(())
        };
        let relayed = tokio::spawn(relaying).await;
        relayed.unwrap_or_else(|_| Err(Error::new(Code::Internal, "an event was cut off")))
    }

    /// Waits until every creation, deletion and clean-up that has begun is over, for a graceful
    /// stop. Containers are left running.
    pub async fn settled(&self) {
        drop(self.inner.work.write().await);
    }
}

impl Inner {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_hearing(&self) -> MutexGuard<'_, Hearing> {
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which events of shims are shown to the manager.
    pub(crate) fn hearing(&self) -> Hearing {
        *self.lock_hearing()
    }

    fn begin_to_hear(&self) {
        let mut hearing = self.lock_hearing();
        if *hearing == Hearing::Nothing {
            *hearing = Hearing::Since(SystemTime::now());
        }
    }

    pub(crate) fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.tasks().entries.get(key).cloned()
    }

    /// Whether this very entry still is the task of its id.
    pub(crate) fn is_current(&self, entry: &Arc<Entry>) -> bool {
        self.tasks()
            .entries
            .get(entry.shim.key())
            .is_some_and(|current| Arc::ptr_eq(current, entry))
    }

    /// Enters a task and watches its shim from here on.
    pub(crate) fn enter(self: &Arc<Self>, entry: &Arc<Entry>) {
        self.listen(entry);
        dead_shim::watch(self, entry);
    }

    /// Enters a task so that events about it are heard, and no more.
    pub(crate) fn listen(&self, entry: &Arc<Entry>) {
        let key = entry.shim.key();
        let mut tasks = self.tasks();
        tasks.entries.insert(key.clone(), Arc::clone(entry));
        let heard = tasks.early.remove(key).unwrap_or_default();
        drop(tasks);
        if !heard.is_empty() {
            entry.recall(heard);
        }
    }

    /// Keeps what was heard of an id until there is an entry of it.
    fn keep_early(&self, tasks: &mut Tasks, key: Key, end: End) {
        // What was heard of creations that failed is of no use to anybody.
        tasks.early.retain(|key, _| self.shims.is_taken(key));
        let heard = tasks.early.entry(key).or_default();
        if heard.len() == MAX_EARLY {
            heard.remove(0);
        }
        heard.push(end);
    }

    /// Forgets a task and its shim; the id is free.
    pub(crate) fn forget(&self, entry: &Arc<Entry>) {
        let mut tasks = self.tasks();
        let entries = &mut tasks.entries;
        if entries.get(entry.shim.key()).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            entries.remove(entry.shim.key());
        }
        drop(tasks);
        self.shims.remove(&entry.shim);
    }

    /// Keeps the manager from having settled.
    pub(crate) fn work(&self) -> Arc<RwLock<()>> {
        Arc::clone(&self.work)
    }
}

fn not_found(key: &Key) -> Error {
    Error::new(Code::NotFound, format!("task {key} not found"))
}

fn cut_off(what: &str, key: &Key) -> Error {
    Error::new(Code::Internal, format!("{what} of task {key} was cut off"))
}
