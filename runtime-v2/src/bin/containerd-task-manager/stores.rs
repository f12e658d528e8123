//! containerd's records, as the manager asks for them.

use async_trait::async_trait;
use runtime_v2::{Code, ContainerStore, Error, Key, Result, SandboxStore};

use crate::containerd::{Containerd, Scope};

/// Records kept by the containerd behind.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    containerd: Containerd,
}

impl Records {
    /// The records of that containerd.
    pub(crate) fn new(containerd: Containerd) -> Self {
        Self { containerd }
    }
}

#[async_trait]
impl ContainerStore for Records {
    async fn runtime(&self, key: &Key) -> Result<Option<String>> {
        let found = self.containerd.container(&Scope::of(&key.namespace), key.id.as_str()).await;
        let container = found.map_err(|status| unreadable("container", key, &status))?;
        Ok(container.and_then(|container| container.runtime).map(|runtime| runtime.name))
    }
}

#[async_trait]
impl SandboxStore for Records {
    async fn contains(&self, key: &Key) -> Result<bool> {
        let found = self.containerd.has_sandbox(&Scope::of(&key.namespace), key.id.as_str()).await;
        found.map_err(|status| unreadable("sandbox", key, &status))
    }
}

fn unreadable(what: &str, key: &Key, status: &tonic::Status) -> Error {
    let kind = Code::from_number(i32::from(status.code())).unwrap_or(Code::Unknown);
    Error::new(kind, format!("record of {what} {key}: {}", status.message()))
}
