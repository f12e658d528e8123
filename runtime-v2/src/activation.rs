//! Mounts that no shim can make, made by somebody else before it is started: file systems that
//! must be formatted first, loop devices, whatever a containerd of 2.2 or later has handlers for.

use std::time::Duration;

use async_trait::async_trait;
use runtime_proto::{errdefs::Code, types::Mount};
use tokio::time::timeout;

use crate::{
    error::{Error, Result},
    id::Key,
};

/// Mounts may have to be formatted.
const ACTIVATE_TIMEOUT: Duration = Duration::from_secs(120);

/// For an unmount that flushes to a slow disk.
const DEACTIVATE_TIMEOUT: Duration = Duration::from_secs(60);

/// What became of the mounts of a container.
#[derive(Debug, Default)]
pub struct Activation {
    /// Those that are left for the shim.
    pub left: Vec<Mount>,
    /// Whether the others were made now. If not, they are those of an earlier task of this id, or of
    /// one elsewhere, and not to be undone when the creation fails.
    pub made: bool,
}

/// Who makes the mounts that a shim cannot make.
#[async_trait]
pub trait MountActivator: Send + Sync + 'static {
    /// Makes what only it can of the mounts of a container's root file system. It may find them
    /// made already, by an earlier try that was cut off.
    ///
    /// # Errors
    /// When a mount failed; nothing of it is left then.
    async fn activate(&self, key: &Key, mounts: Vec<Mount>) -> Result<Activation>;

    /// Undoes that, when shim and bundle are gone, as far as there is something to undo.
    ///
    /// # Errors
    /// When something stays mounted; the manager then says so in its log and goes on.
    async fn deactivate(&self, key: &Key) -> Result<()>;
}

/// For embedders that leave all mounts to the shim.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShimMounts;

#[async_trait]
impl MountActivator for ShimMounts {
    async fn activate(&self, _: &Key, mounts: Vec<Mount>) -> Result<Activation> {
        Ok(Activation { left: mounts, made: false })
    }

    async fn deactivate(&self, _: &Key) -> Result<()> {
        Ok(())
    }
}

/// Has mounts made, within a limit.
pub(crate) async fn activate(
    activator: &dyn MountActivator,
    key: &Key,
    mounts: Vec<Mount>,
) -> Result<Activation> {
    if mounts.is_empty() {
        return Ok(Activation::default());
    }
    let making = timeout(ACTIVATE_TIMEOUT, activator.activate(key, mounts));
    let made = making.await.unwrap_or_else(|_| Err(too_slow(ACTIVATE_TIMEOUT)));
    made.map_err(|error| error.within(format!("make the mounts of {key}")))
}

/// Undoes them. What stays is no reason to keep the id.
pub(crate) async fn deactivate(activator: &dyn MountActivator, key: &Key) {
    let undoing = timeout(DEACTIVATE_TIMEOUT, activator.deactivate(key));
    if let Err(error) = undoing.await.unwrap_or_else(|_| Err(too_slow(DEACTIVATE_TIMEOUT))) {
        tracing::warn!(namespace = %key.namespace, id = %key.id, %error, "mounts stay");
    }
}

fn too_slow(limit: Duration) -> Error {
    Error::new(Code::DeadlineExceeded, format!("not done within {limit:?}"))
}
