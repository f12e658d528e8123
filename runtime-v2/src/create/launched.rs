//! Second stage: there is a shim, and the task is asked for.

use std::{sync::Arc, time::Duration};

use runtime_proto::{
    errdefs::Code,
    task::{
        CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse, StartRequest,
        StartResponse,
    },
};
use tokio::time::timeout;

use super::{
    Caller, CreateOptions, Restoration,
    bundled::{Bundled, Mounted, remove},
    gone,
};
use crate::{
    client::First,
    config::Timeouts,
    dead_shim,
    error::{Error, Result},
    shim::Shim,
    shim_manager::Reservation,
    task::{Entry, Task},
    task_manager::Inner,
};

/// An OCI runtime that creates a container runs its hooks, which set up networks; the most
/// patient callers, kubelets, give up before this.
const CREATE_TIMEOUT: Duration = Duration::from_secs(300);

/// For what is read back from a checkpoint, on a slow disk: changes of the root file system, and the
/// memory of a large container.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(600);

/// For a create that the caller gave up on. Once it has ended, either way, its remains can be
/// removed in order; cutting it off leaves half a container to be found by force.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A shim that answers, and perhaps a container.
pub(super) struct Launched {
    inner: Arc<Inner>,
    reservation: Reservation,
    options: CreateOptions,
    mounted: Mounted,
    shim: Shim,
}

impl Launched {
    pub(super) fn new(bundled: Bundled, shim: Shim) -> Self {
        let Bundled { inner, reservation, options, mounted, .. } = bundled;
        Self { inner, reservation, options, mounted, shim }
    }

    /// Asks for the task, and enters it.
    pub(super) async fn create(mut self, caller: &mut Caller) -> Result<Task> {
        let restoration = self.options.restoration.take();
        let request = self.request();
        let asked = {
            let asking = self.ask(&request, restoration.as_deref());
            tokio::pin!(asking);
            tokio::select! {
                asked = &mut asking => asked,
                () = caller.gone() => {
                    let _ = timeout(SETTLE_TIMEOUT, asking).await;
                    Err(gone(self.shim.key()))
                }
            }
        };
        match asked {
            Ok(pid) => Ok(self.commit(pid)),
            Err(error) => {
                let error = error.within("failed to create shim task");
                Err(self.undo(error).await)
            }
        }
    }

    /// Has the task created, and if it is restored as a whole, completed and started; its pid.
    async fn ask(
        &self,
        request: &CreateTaskRequest,
        restoration: Option<&dyn Restoration>,
    ) -> Result<u32> {
        let created: First<CreateTaskResponse> =
            self.shim.first_call("Create", request, Some(CREATE_TIMEOUT)).await?;
        if created.downgraded {
            self.shim.note_downgrade().await?;
        }
        // The pid is that of the answer: no further call is needed for it.
        let Some(restoration) = restoration else { return Ok(created.answer.pid) };
        let rootfs = self.shim.bundle().path().join("rootfs");
        timeout(RESTORE_TIMEOUT, restoration.complete(&rootfs)).await.unwrap_or_else(|_| {
            let text = format!("root file system not restored within {RESTORE_TIMEOUT:?}");
            Err(Error::new(Code::DeadlineExceeded, text))
        })?;
        let mut start = StartRequest::new();
        start.id.clone_from(&request.id);
        let started: StartResponse = self.shim.call("Start", &start, Some(RESTORE_TIMEOUT)).await?;
        Ok(started.pid)
    }

    fn request(&mut self) -> CreateTaskRequest {
        let options = self.options.options().cloned();
        let given = std::mem::take(&mut self.options);
        let mut request = CreateTaskRequest::new();
        request.id = self.shim.key().id.to_string();
        request.bundle = self.shim.bundle().path().display().to_string();
        request.rootfs = given.rootfs;
        request.terminal = given.stdio.terminal;
        (request.stdin, request.stdout, request.stderr) =
            (given.stdio.stdin, given.stdio.stdout, given.stdio.stderr);
        request.checkpoint = given.checkpoint;
        request.options = options.into();
        request
    }

    fn commit(self, pid: u32) -> Task {
        let shim = Arc::new(self.shim);
        let entry = Entry::new(Arc::clone(&shim), pid);
        // The shim first: a clean-up that starts at once must find both entries.
        self.reservation.commit(shim);
        self.inner.enter(&entry);
        Task::new(entry)
    }

    /// Undoes both stages. Nothing is assumed about how far the shim came.
    pub(super) async fn undo(self, error: Error) -> Error {
        let Self { inner, reservation, shim, mounted, .. } = self;
        let mut request = DeleteRequest::new();
        request.id = shim.key().id.to_string();
        let Timeouts { cleanup, shutdown, .. } = inner.shims.config().timeouts;
        let deleted: Result<DeleteResponse> = shim.call("Delete", &request, Some(cleanup)).await;
        shim.shut_down(shutdown).await;
        if deleted.is_err() {
            dead_shim::end_remains(&inner, &shim).await;
        }
        remove(&inner, shim.bundle(), mounted).await;
        drop(reservation);
        error
    }
}
