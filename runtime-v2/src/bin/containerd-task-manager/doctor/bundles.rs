//! Bundles: those whose shim has no task, those whose shim is dead, and those that never had one.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use runtime_v2::{
    Config, Key,
    bundle::Bundle,
    inspect::{Alive, Inspected, ShimState, TaskState, ask},
};

use super::{Finding, Kind, Remedy, Scene, shims::Dismissal};
use crate::{places::surroundings, procfs::Process};

/// A pid file is written right after its process is made; what began later than this is another
/// process of the same number.
const PID_FILE_DELAY: Duration = Duration::from_secs(10);

/// Judges one bundle.
pub(super) async fn judge(scene: &Scene, found: &Inspected) -> Option<Finding> {
    let path = found.bundle.path();
    match &found.shim {
        ShimState::Alive(alive) => leaked(scene, found, alive).await,
        ShimState::Silent { location, error } => {
            let text = format!("its shim at {} does not answer: {error}", location.address);
            Some(Finding::new(Kind::SilentShim, path.display(), text).of(found.bundle.key()))
        }
        ShimState::Dead { location } => {
            dead(scene, found, &format!("nobody listens at {}", location.address))
        }
        ShimState::Unnoted => dead(scene, found, "it names no shim"),
        ShimState::Garbled(why) => {
            dead(scene, found, &format!("what names its shim is unreadable: {why}"))
        }
    }
}

/// A shim that answers and has no task, unless it is a sandbox.
async fn leaked(scene: &Scene, found: &Inspected, alive: &Alive) -> Option<Finding> {
    let key = found.bundle.key();
    let process = Process::find(alive.pid)?;
    let is_young = process.age().is_none_or(|age| age < scene.min_age);
    if !matches!(alive.task, TaskState::HasNone) || found.sandbox.is_some() || is_young {
        return None;
    }
    let subject = format!("process {}", alive.pid);
    match scene.is_sandbox(key).await {
        Some(true) => None,
        None => {
            let text = "this shim has no task; whether it is a sandbox cannot be asked now, see --containerd";
            Some(Finding::new(Kind::LeakedShim, subject, text).of(key))
        }
        Some(false) => {
            let text = "this shim has no task and is no sandbox: its daemon ended in the middle of a create or a delete";
            let removal = Removal::new(&found.bundle);
            let location = alive.location.clone();
            let dismissal =
                Dismissal { key: key.clone(), process, location, bundle: Some(removal) };
            Some(
                Finding::new(Kind::LeakedShim, subject, text)
                    .of(key)
                    .curable(Remedy::Shim(dismissal)),
            )
        }
    }
}

/// A bundle that no shim answers for.
fn dead(scene: &Scene, found: &Inspected, why: &str) -> Option<Finding> {
    let (key, path) = (found.bundle.key(), found.bundle.path());
    if !scene.is_old(path) {
        return None;
    }
    if let Some(init) = live_init(path, found.init_pid) {
        let text = format!(
            "this container runs without a shim ({why}); its manager ends it when it starts again"
        );
        return Some(Finding::new(Kind::Orphan, format!("process {}", init.pid), text).of(key));
    }
    if let Some(user) = process_in(path) {
        let text = format!("process {} works in this bundle, but {why}", user.pid);
        return Some(Finding::new(Kind::SilentShim, path.display(), text).of(key));
    }
    let text = format!("this bundle has no shim ({why}), and no process of its container is left");
    let removal = Remedy::Bundle(Removal::new(&found.bundle));
    Some(Finding::new(Kind::DeadBundle, path.display(), text).of(key).curable(removal))
}

/// Init of a container, if it still is the process that the pid file was written for.
pub(super) fn live_init(bundle: &Path, pid: Option<u32>) -> Option<Process> {
    let process = Process::find(pid?)?;
    let written = fs::metadata(bundle.join("init.pid")).and_then(|meta| meta.modified()).ok()?;
    let written = written.duration_since(UNIX_EPOCH).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let began = now.checked_sub(process.age()?)?;
    (began <= written + PID_FILE_DELAY).then_some(process)
}

/// A process that was started in a bundle.
pub(super) fn process_in(bundle: &Path) -> Option<Process> {
    Process::all().find(|process| process.directory().is_some_and(|dir| dir == bundle))
}

/// Removing a bundle that nobody uses.
#[derive(Debug)]
pub(crate) struct Removal {
    bundle: Bundle,
}

impl Removal {
    pub(super) fn new(bundle: &Bundle) -> Self {
        // Where its work directory is, only its own link says.
        let state = bundle.path().ancestors().nth(2).unwrap_or(Path::new("/"));
        let root = work_root(bundle.path(), bundle.key()).unwrap_or_else(|| state.to_path_buf());
        let config = Config { root, ..surroundings(state) };
        Self { bundle: Bundle::at(&config, bundle.key().clone()) }
    }

    /// Proves once more that nobody uses it, then removes it.
    pub(super) async fn apply(self) -> Result<(), String> {
        let looked = runtime_v2::inspect::look(self.bundle).await.map_err(|e| e.to_string())?;
        let path = looked.bundle.path();
        let is_dead = match looked.shim {
            ShimState::Unnoted | ShimState::Garbled(_) | ShimState::Dead { .. } => true,
            ShimState::Silent { .. } | ShimState::Alive(_) => false,
        };
        if !is_dead || live_init(path, looked.init_pid).is_some() || process_in(path).is_some() {
            return Err("it has come to life".to_owned());
        }
        let removed = looked.bundle.blocking(Bundle::remove).await;
        removed.map_err(|error| error.to_string())
    }
}

/// The directory of all work directories, by the link to one.
fn work_root(bundle: &Path, key: &Key) -> Option<PathBuf> {
    let work = fs::read_link(bundle.join("work")).ok()?;
    let ours = work.is_absolute()
        && work.ends_with(Path::new(key.namespace.as_str()).join(key.id.as_str()));
    ours.then(|| work.ancestors().nth(2).map(Path::to_path_buf)).flatten()
}

/// Whether a shim, asked again, still has no task of this id.
pub(super) async fn has_none(bundle: &Bundle, location: runtime_v2::inspect::Location) -> bool {
    let answer = ask(bundle, location).await;
    matches!(answer, ShimState::Alive(Alive { task: TaskState::HasNone, .. }))
}
