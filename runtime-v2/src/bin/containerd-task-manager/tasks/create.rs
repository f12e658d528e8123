//! Create: what the container's record and the request say, put together for the manager.

use std::path::{Path, PathBuf};

use runtime_v2::{CreateOptions, Endpoint, Stdio};
use tempfile::TempDir;
use tonic::Status;

use super::{Tasks, call::Call};
use crate::{
    api::{
        Any,
        containers::Container,
        tasks::{CreateTaskRequest, CreateTaskResponse},
    },
    convert::{self, TaskOptions},
    grpc::status,
};

/// Runtimes of this name take the options of the runc shim and no others.
const RUNC: &str = "io.containerd.runc.";

/// The sandbox's task API when its version is not given: the first that sandboxes had.
const FIRST_SANDBOX_API: u32 = 3;

impl Tasks {
    pub(super) async fn create(
        &self,
        call: &Call,
        mut request: CreateTaskRequest,
    ) -> Result<CreateTaskResponse, Status> {
        let id = request.container_id.clone();
        let container = self.container(call, &id).await?;
        let key = call.key(&id)?;
        if self.manager.get(&key).await.is_ok() {
            return Err(Status::already_exists(format!("task {id}: already exists")));
        }
        let options = task_options(&container, request.options.as_ref())?;
        let restore = self.checkpoint_to_restore(call, &request, &options).await?;
        let rootfs = std::mem::take(&mut request.rootfs);
        let mut wanted = wanted(container, request, options);
        wanted.rootfs = convert::mounts_in(rootfs);
        wanted.checkpoint = restore.path();
        let task = self.manager.create(key, wanted).await.map_err(|error| status(&error))?;
        if task.shim().is_downgraded() {
            self.metrics.downgraded();
        }
        if let Restore::Fetched(dir) = restore {
            self.restores().insert(task.key().clone(), dir);
        }
        Ok(CreateTaskResponse { container_id: id, pid: task.pid() })
    }

    /// Where the checkpoint to restore from is, brought here from the content store if need be.
    async fn checkpoint_to_restore(
        &self,
        call: &Call,
        request: &CreateTaskRequest,
        options: &TaskOptions,
    ) -> Result<Restore, Status> {
        match &request.checkpoint {
            None if options.image_path.is_empty() => Ok(Restore::Nothing),
            None => Ok(Restore::From(PathBuf::from(&options.image_path))),
            Some(descriptor) => self.fetch_checkpoint(call, descriptor).await.map(Restore::Fetched),
        }
    }
}

/// What a task is restored from.
enum Restore {
    Nothing,
    From(PathBuf),
    /// Brought here; needed until the task is started, which is when it is read.
    Fetched(TempDir),
}

impl Restore {
    fn path(&self) -> String {
        match self {
            Restore::Nothing => String::new(),
            Restore::From(path) => path.display().to_string(),
            Restore::Fetched(dir) => dir.path().display().to_string(),
        }
    }
}

/// What the task's own options say to this daemon.
fn task_options(container: &Container, sent: Option<&Any>) -> Result<TaskOptions, Status> {
    let Some(sent) = sent.filter(|any| !any.type_url.is_empty()) else {
        return Ok(TaskOptions::default());
    };
    let runtime = container.runtime.as_ref().map(|runtime| runtime.name.as_str());
    let runtime = runtime.unwrap_or_default();
    let refused = || format!("invalid task create option for {runtime}");
    match convert::task_options(sent) {
        Ok(Some(options)) => Ok(options),
        // The options of another shim are that shim's business.
        Ok(None) if !runtime.starts_with(RUNC) => Ok(TaskOptions::default()),
        Ok(None) => Err(Status::unknown(refused())),
        Err(why) => {
            Err(Status::invalid_argument(format!("{}: {why}: invalid argument", refused())))
        }
    }
}

fn wanted(container: Container, request: CreateTaskRequest, options: TaskOptions) -> CreateOptions {
    let runtime = container.runtime.unwrap_or_default();
    let (address, version) = if request.task_api_address.is_empty() {
        (options.api_address, options.api_version)
    } else {
        (request.task_api_address, request.task_api_version)
    };
    let version = if version == 0 { FIRST_SANDBOX_API } else { version };
    let endpoint = (!address.is_empty())
        .then(|| Endpoint { address, version: i32::try_from(version).unwrap_or(i32::MAX) });
    let path = Path::new(&request.runtime_path);
    let runtime_name =
        if path.as_os_str().is_empty() { runtime.name } else { request.runtime_path };
    CreateOptions {
        spec: container.spec.map(convert::any_in),
        stdio: Stdio {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        },
        runtime: runtime_name,
        runtime_options: runtime.options.map(convert::any_in),
        task_options: request.options.map(convert::any_in),
        sandbox: (!container.sandbox.is_empty()).then_some(container.sandbox),
        endpoint,
        ..CreateOptions::default()
    }
}
