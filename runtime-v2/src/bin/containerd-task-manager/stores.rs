//! containerd's records and mounts, as the manager asks for them.

use async_trait::async_trait;
use runtime_proto::types::Mount;
use runtime_v2::{
    Activation, Code, ContainerStore, Error, Key, MountActivator, Result, SandboxStore,
};

use crate::{
    containerd::{Containerd, Scope},
    convert,
};

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

#[async_trait]
impl MountActivator for Containerd {
    async fn activate(&self, key: &Key, mounts: Vec<Mount>) -> Result<Activation> {
        let scope = Scope::of(&key.namespace);
        let mounts = convert::mounts_out(mounts);
        let activated = Containerd::activate(self, &scope, key.id.as_str(), mounts).await;
        let (left, made) = activated.map_err(|status| refused("activate", &status))?;
        Ok(Activation { left: convert::mounts_in(left), made })
    }

    async fn deactivate(&self, key: &Key) -> Result<()> {
        let scope = Scope::of(&key.namespace);
        let undone = Containerd::deactivate(self, &scope, key.id.as_str()).await;
        undone.map_err(|status| refused("deactivate", &status))
    }
}

fn unreadable(what: &str, key: &Key, status: &tonic::Status) -> Error {
    refused(&format!("record of {what} {key}"), status)
}

fn refused(what: &str, status: &tonic::Status) -> Error {
    let kind = Code::from_number(i32::from(status.code())).unwrap_or(Code::Unknown);
    Error::new(kind, format!("{what}: {}", status.message()))
}
