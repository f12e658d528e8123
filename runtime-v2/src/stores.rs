//! What the manager asks about containers and sandboxes; their records are kept elsewhere.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use runtime_proto::errdefs::Code;
use tokio::time::timeout;

use crate::{
    error::{Error, Result},
    id::Key,
};

/// For one look into records, which may be in another process. One that takes longer has failed.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// One look into records, with a limit.
pub(crate) async fn look<T>(look: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(STORE_TIMEOUT, look).await.unwrap_or_else(|_| {
        let text = format!("the records did not answer within {STORE_TIMEOUT:?}");
        Err(Error::new(Code::DeadlineExceeded, text))
    })
}

/// The records of containers.
#[async_trait]
pub trait ContainerStore: Send + Sync + 'static {
    /// The runtime of a container, a name or a path; `None` if there is no such container.
    ///
    /// Asked for bundles, at load, that do not say which binary their shim was.
    ///
    /// # Errors
    /// When the records cannot be read. The bundle is then left as it is.
    async fn runtime(&self, key: &Key) -> Result<Option<String>>;
}

/// The records of sandboxes.
#[async_trait]
pub trait SandboxStore: Send + Sync + 'static {
    /// Whether there is a sandbox of this id. A shim that is one may be without a task.
    ///
    /// # Errors
    /// When the records cannot be read. The shim then counts as a sandbox, to be safe.
    async fn contains(&self, key: &Key) -> Result<bool>;
}

/// Records in memory, for embedders that have no others.
#[derive(Debug, Default)]
pub struct MemoryStore {
    runtimes: Mutex<HashMap<Key, String>>,
    sandboxes: Mutex<HashSet<Key>>,
}

impl MemoryStore {
    /// Notes the runtime of a container.
    pub fn insert_container(&self, key: Key, runtime: impl Into<String>) {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner).insert(key, runtime.into());
    }

    /// Forgets a container.
    pub fn remove_container(&self, key: &Key) {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Notes a sandbox.
    pub fn insert_sandbox(&self, key: Key) {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    /// Forgets a sandbox.
    pub fn remove_sandbox(&self, key: &Key) {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[async_trait]
impl ContainerStore for MemoryStore {
    async fn runtime(&self, key: &Key) -> Result<Option<String>> {
        Ok(self.runtimes.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }
}

#[async_trait]
impl SandboxStore for MemoryStore {
    async fn contains(&self, key: &Key) -> Result<bool> {
        Ok(self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).contains(key))
    }
}
