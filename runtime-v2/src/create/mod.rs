//! Creating a task, in stages that undo themselves.
//!
//! ```text
//!   reserved --> Bundled --launch--> Launched --create--> entered
//!                   |                    |
//!                 undo                 undo: Delete, Shutdown, close, kill, `delete`
//!                   `--> bundle removed <--'  then the id is free again
//! ```
//! All of it runs in a task of its own. When the caller gives up or goes away, the stage that is at
//! work is undone as if it had failed, each step on its own budget; the id stays taken until then.

mod bundled;
mod launched;
mod stale;

use std::{fmt, path::Path, sync::Arc};

use async_trait::async_trait;
use runtime_proto::{
    errdefs::Code,
    types::{Any, Mount},
};
use tokio::sync::{oneshot, watch};

use crate::{
    error::{Error, Result},
    id::Key,
    shim_manager::Reservation,
    task::{Stdio, Task},
    task_manager::Inner,
};

/// What to create.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// JSON of an OCI runtime spec.
    pub spec: Option<Any>,
    /// What the shim mounts as the root file system, in order.
    pub rootfs: Vec<Mount>,
    /// Streams of init.
    pub stdio: Stdio,
    /// Directory of a checkpoint to restore, or empty.
    pub checkpoint: String,
    /// Name of the runtime, or absolute path of its shim binary.
    pub runtime: String,
    /// Options of the container's runtime.
    pub runtime_options: Option<Any>,
    /// Options of this task, which win over those of the runtime.
    pub task_options: Option<Any>,
    /// What is done to a restored container between its creation and its start, which then follows
    /// at once.
    pub restoration: Option<Arc<dyn Restoration>>,
    /// The sandbox this container is in.
    pub sandbox: Option<String>,
    /// Where that sandbox's task API is, if it says so itself.
    pub endpoint: Option<Endpoint>,
}

/// Completes a container that is restored from a checkpoint of a whole container, as CRI makes
/// them, where what had changed in the root file system lies beside what criu wrote.
#[async_trait]
pub trait Restoration: fmt::Debug + Send + Sync + 'static {
    /// Brings the root file system, which is mounted, to the state of the checkpoint.
    ///
    /// # Errors
    /// When it cannot; the creation is undone then.
    async fn complete(&self, rootfs: &Path) -> Result<()>;
}

/// A task API that a sandbox offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `<protocol>+<address>`, or an address for ttrpc.
    pub address: String,
    /// Version of the API.
    pub version: i32,
}

impl CreateOptions {
    /// The options that count.
    fn options(&self) -> Option<&Any> {
        let given = |options: &&Any| !options.value.is_empty() || !options.type_url.is_empty();
        let task = self.task_options.as_ref().filter(|options| !options.value.is_empty());
        task.or(self.runtime_options.as_ref()).filter(given)
    }
}

/// Somebody who waits for the outcome, or no longer does.
#[derive(Debug)]
pub(crate) struct Caller {
    reply: oneshot::Sender<Result<Task>>,
    /// Closed, with nothing ever sent, when the caller wants it undone.
    wanted: watch::Receiver<()>,
}

impl Caller {
    /// Who is replied to, and wants it as long as the other side of `wanted` is there.
    pub(crate) fn new(reply: oneshot::Sender<Result<Task>>, wanted: watch::Receiver<()>) -> Self {
        Self { reply, wanted }
    }

    /// Returns when nobody waits any more, or nobody wants what there is to wait for.
    async fn gone(&mut self) {
        tokio::select! {
            () = self.reply.closed() => {}
            _ = self.wanted.changed() => {}
        }
    }
}

fn gone(key: &Key) -> Error {
    Error::new(Code::Canceled, format!("create task {key}: the caller has given up"))
}

/// Creates a task, or leaves nothing.
pub(crate) async fn create(
    inner: Arc<Inner>,
    reservation: Reservation,
    options: CreateOptions,
    mut caller: Caller,
) {
    let key = reservation.key().clone();
    let (namespace, id) = (&key.namespace, &key.id);
    let created = stages(inner, reservation, options, &mut caller).await;
    match &created {
        Ok(task) => {
            tracing::info!(%namespace, %id, pid = task.pid(), version = task.shim().version(), "task created")
        }
        Err(error) => tracing::info!(%namespace, %id, %error, "task not created"),
    }
    // A caller that left after the last stage finds the task in the list.
    let _ = caller.reply.send(created);
}

async fn stages(
    inner: Arc<Inner>,
    reservation: Reservation,
    options: CreateOptions,
    caller: &mut Caller,
) -> Result<Task> {
    let bundled = bundled::Bundled::new(inner, reservation, options).await?;
    let launched = bundled.launch(caller).await?;
    launched.create(caller).await
}
