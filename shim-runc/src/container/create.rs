//! Create: from a bundle to a container that waits to be started.
//!
//! Each step that leaves something behind has its undoing beside it: mounts in a guard, streams
//! closed, a container that the runtime made in spite of failing deleted by force.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use runtime_proto::{
    events::{TaskCreate, TaskIO},
    types,
};
use tokio::sync::Notify;

use super::{Container, Shared};
use crate::{
    cgroup::{Cgroup, OomWatch},
    error::{Error, Result},
    io::{Owner, ProcessIo, StdioRequest},
    mount::{self, Mount, RootfsMounts},
    process::{Process, Stdio, adopt, state::InitState},
    programs::MountPrograms,
    reaper::{Adopted, Claim, ExitWaiter},
    runc::{CreateArgs, ProcessStreams, Runc, options::RuncOptions},
    spec::Spec,
    threads,
};

/// What a container is made of.
#[derive(Debug)]
pub struct CreateRequest {
    /// Its id.
    pub id: String,
    /// Its bundle.
    pub bundle: PathBuf,
    /// What is mounted on the bundle's `rootfs`.
    pub rootfs: Vec<Mount>,
    /// Init's streams.
    pub stdio: Stdio,
    /// The checkpoint to restore at Start; empty for none.
    pub checkpoint: String,
    /// How to call the runtime.
    pub options: RuncOptions,
}

/// An init that is ready to be watched.
#[derive(Debug)]
pub(super) struct Watched {
    exit: ExitWaiter,
    oom: Option<OomWatch>,
}

impl Container {
    /// Makes a container and publishes that.
    ///
    /// # Errors
    /// What failed first; then nothing of the container is left.
    pub async fn create(shared: &Shared, request: CreateRequest) -> Result<Arc<Self>> {
        request.options.store(&request.bundle)?;
        let mounts = mount_rootfs(shared, &request).await?;
        let claim = shared.reaper.claim();
        let container = Arc::new(Self::new(shared, &request));
        let made = if container.checkpoint.is_some() {
            Ok(None)
        } else {
            container.make(&claim).await.map(Some)
        };
        let adopted = match made {
            Ok(adopted) => adopted,
            Err(error) => {
                // Unmounting may take its time. Without a thread for that they are dropped in place.
                let _ = threads::run(|| drop(mounts)).await;
                return Err(error);
            }
        };
        if let Some(mounts) = mounts {
            mounts.keep();
        }
        let watched = match adopted {
            Some(adopted) => Some(container.adopted(adopted).await),
            None => None,
        };
        // From here on nothing is waited for: who hears of the container finds it.
        container.publish_created(&request);
        if let Some(watched) = watched {
            container.watch(watched);
        }
        Ok(container)
    }

    fn new(shared: &Shared, request: &CreateRequest) -> Self {
        let CreateRequest { id, bundle, stdio, checkpoint, options, .. } = request;
        // A spec that cannot be read is the runtime's to complain about; until then the worst is
        // assumed of it.
        let own_pids = Spec::read(bundle).is_ok_and(|spec| spec.has_own_pid_namespace());
        let checkpoint = (!checkpoint.is_empty()).then(|| PathBuf::from(checkpoint));
        let state = match checkpoint {
            Some(_) => InitState::CreatedFromCheckpoint,
            None => InitState::Created,
        };
        Self {
            id: id.clone(),
            bundle: bundle.clone(),
            shared: shared.clone(),
            options: options.clone(),
            runc: Runc::new(options, &shared.namespace, bundle, shared.reaper.clone()),
            init: Process::new(id, stdio.clone(), state),
            checkpoint,
            outlives_init: !own_pids,
            execs: Mutex::default(),
            exec_specs: Mutex::default(),
            ledger: Mutex::default(),
            ledger_changed: Notify::new(),
            cgroup: Mutex::default(),
        }
    }

    /// Has the runtime make the container, and adopts its init.
    async fn make(&self, claim: &Claim) -> Result<Adopted> {
        let pid_file = self.init_pid_file();
        let args = CreateArgs {
            bundle: &self.bundle,
            pid_file: &pid_file,
            no_pivot: self.options.no_pivot_root,
            no_new_keyring: self.options.no_new_keyring,
        };
        self.launch_init(claim, async |streams| self.runc.create(&self.id, &args, streams).await)
            .await
    }

    /// Opens init's streams, lets `launch` call the runtime with them, and adopts init. On failure
    /// nothing of it is left.
    pub(super) async fn launch_init(
        &self,
        claim: &Claim,
        launch: impl AsyncFnOnce(ProcessStreams<'_>) -> Result<()>,
    ) -> Result<Adopted> {
        let pid_file = self.init_pid_file();
        // What is found there afterwards is from this call.
        remove_if_present(&pid_file)?;
        let (io, child) = ProcessIo::open(&self.stdio_request(&self.id, &self.init.stdio)).await?;
        let launched = async {
            launch(ProcessStreams { child, io: &io }).await?;
            io.attach().await?;
            adopt(claim, &pid_file)
        };
        match launched.await {
            Ok((pid, adopted)) => {
                self.init.set_io(io);
                self.init.update(|init| init.pid = pid);
                Ok(adopted)
            }
            Err(error) => {
                io.close().await;
                // A runtime that got as far as a pid has made the container, whatever it said
                // then. One that did not may have found another container of this id: not ours.
                if pid_file.exists()
                    && let Err(error) = self.runc.delete(&self.id, true).await
                {
                    tracing::warn!(id = self.id, %error, "container of a failed create is left");
                }
                Err(error)
            }
        }
    }

    /// Prepares to watch init.
    pub(super) async fn adopted(self: &Arc<Self>, adopted: Adopted) -> Watched {
        self.init.set_handle(adopted.handle);
        let container = Arc::clone(self);
        // The kernel makes writers of cgroup files wait for each other.
        let oom = threads::run_or_do_here(move || container.enter_cgroup()).await;
        Watched { exit: adopted.exit, oom }
    }

    /// From now on init is watched, and its end is told.
    pub(super) fn watch(self: &Arc<Self>, watched: Watched) {
        tokio::spawn(Arc::clone(self).watch_init(watched.exit, watched.oom));
    }

    /// Finds the container's cgroup while init is in it, and begins to watch it for OOM kills.
    fn enter_cgroup(&self) -> Option<OomWatch> {
        let cgroup = match Cgroup::of_pid(self.pid()) {
            Ok(cgroup) => Arc::new(cgroup),
            Err(error) => {
                // Init may have ended already; then there is nothing to measure either.
                tracing::debug!(id = self.id, %error, "no cgroup");
                return None;
            }
        };
        cgroup.enable_controllers();
        let oom = OomWatch::open(&cgroup)
            .inspect_err(|error| tracing::warn!(id = self.id, %error, "OOM kills are not told"))
            .ok();
        *super::lock(&self.cgroup) = Some(cgroup);
        oom
    }

    pub(super) fn stdio_request<'a>(&'a self, id: &'a str, stdio: &'a Stdio) -> StdioRequest<'a> {
        StdioRequest {
            id,
            namespace: &self.shared.namespace,
            stdin: &stdio.stdin,
            stdout: &stdio.stdout,
            stderr: &stdio.stderr,
            terminal: stdio.terminal,
            owner: Owner { uid: self.options.io_uid, gid: self.options.io_gid },
            spawner: &self.shared.reaper,
        }
    }

    pub(super) fn init_pid_file(&self) -> PathBuf {
        self.bundle.join("init.pid")
    }

    fn publish_created(&self, request: &CreateRequest) {
        let mut io = TaskIO::new();
        io.stdin.clone_from(&request.stdio.stdin);
        io.stdout.clone_from(&request.stdio.stdout);
        io.stderr.clone_from(&request.stdio.stderr);
        io.terminal = request.stdio.terminal;
        let mut event = TaskCreate::new();
        event.container_id.clone_from(&self.id);
        event.bundle = self.bundle.to_string_lossy().into_owned();
        event.rootfs = request.rootfs.iter().map(mount_to_proto).collect();
        event.io = Some(io).into();
        event.checkpoint.clone_from(&request.checkpoint);
        event.pid = self.pid();
        self.shared.publisher.publish(&event);
    }
}

/// Mounts the rootfs of a request; the mounts are undone when the guard falls.
async fn mount_rootfs(shared: &Shared, request: &CreateRequest) -> Result<Option<RootfsMounts>> {
    if request.rootfs.is_empty() {
        return Ok(None);
    }
    let rootfs = request.bundle.join("rootfs");
    match fs::DirBuilder::new().mode(0o711).create(&rootfs) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::io(format!("make {}", rootfs.display()), error)),
    }
    let mounts = request.rootfs.clone();
    let programs = MountPrograms::new(&shared.reaper);
    threads::run(move || mount::mount_all(&rootfs, &mounts, &programs)).await?.map(Some)
}

/// Removes a file that may not be there.
pub(super) fn remove_if_present(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("remove {}", path.display()), error)),
    }
}

/// A mount as events carry it.
fn mount_to_proto(mount: &Mount) -> types::Mount {
    let mut message = types::Mount::new();
    message.type_.clone_from(&mount.type_);
    message.source.clone_from(&mount.source);
    message.target.clone_from(&mount.target);
    message.options.clone_from(&mount.options);
    message
}
