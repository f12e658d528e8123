//! Shims that no bundle refers to, and how a shim without tasks is made to go.

use std::path::PathBuf;

use runtime_v2::{
    Key,
    bundle::Bundle,
    inspect::{Alive, Location, ShimState, TaskState, ask, dismiss},
};

use super::{
    Finding, Kind, Remedy, Scene,
    bundles::{Removal, has_none},
};
use crate::{places::surroundings, procfs::Process};

/// What executables of shims are called, as runtime names resolve to (containerd
/// core/runtime/v2/shim.go).
const SHIM_PREFIX: &str = "containerd-shim-";

/// Asking a shim to go.
#[derive(Debug)]
pub(crate) struct Dismissal {
    pub(super) key: Key,
    pub(super) process: Process,
    pub(super) location: Location,
    /// Its bundle, if it has one.
    pub(super) bundle: Option<Removal>,
}

impl Dismissal {
    /// Asks it once more whether it has a task, then to end. One that has containers ignores it.
    pub(super) async fn apply(self) -> Result<(), String> {
        let nowhere = Bundle::at(&surroundings(std::path::Path::new("/")), self.key.clone());
        if !self.process.is_alive() {
            return Err("it has ended by itself".to_owned());
        }
        if !has_none(&nowhere, self.location.clone()).await || has_children(self.process) {
            return Err("it has come to have a task".to_owned());
        }
        dismiss(&self.key, &self.location).await;
        if self.process.is_alive() {
            return Err("it does not end when asked; it may serve other containers".to_owned());
        }
        match self.bundle {
            Some(bundle) => bundle.apply().await,
            None => Ok(()),
        }
    }
}

/// Shims that were started in one of the state directories and that no bundle there refers to.
pub(super) async fn without_bundle(scene: &Scene) -> Vec<Finding> {
    let addresses: Vec<&str> = scene
        .bundles
        .iter()
        .filter_map(|found| match &found.shim {
            ShimState::Dead { location } | ShimState::Silent { location, .. } => Some(location),
            ShimState::Alive(alive) => Some(&alive.location),
            ShimState::Unnoted | ShimState::Garbled(_) => None,
        })
        .map(|location| location.address.as_str())
        .collect();
    let mut findings = Vec::new();
    for process in Process::all().filter(|process| is_shim(*process)) {
        let Some(key) = started_for(scene, process) else { continue };
        let sockets: Vec<String> =
            process.listens_at().iter().map(|path| format!("unix://{}", path.display())).collect();
        let used = sockets.iter().any(|socket| addresses.contains(&socket.as_str()));
        let young = process.age().is_none_or(|age| age < scene.min_age);
        let has_bundle = scene.bundles.iter().any(|found| *found.bundle.key() == key);
        if !used && !young && !has_bundle {
            findings.push(judge(process, key, sockets).await);
        }
    }
    findings
}

async fn judge(process: Process, key: Key, sockets: Vec<String>) -> Finding {
    let subject = format!("process {}", process.pid);
    let nowhere = Bundle::at(&surroundings(std::path::Path::new("/")), key.clone());
    for socket in sockets {
        let location = Location::ttrpc(runtime_v2::inspect::NEWEST, socket);
        let ShimState::Alive(Alive { pid, task, location }) = ask(&nowhere, location).await else {
            continue;
        };
        if pid != process.pid {
            continue;
        }
        if !matches!(task, TaskState::HasNone) || has_children(process) {
            let text =
                "this shim serves a container whose bundle is gone: no manager finds it again";
            return Finding::new(Kind::Orphan, subject, text).of(&key);
        }
        let text = "this shim has no task, and no bundle refers to it: no manager finds it again";
        let dismissal = Dismissal { key: key.clone(), process, location, bundle: None };
        return Finding::new(Kind::LeakedShim, subject, text)
            .of(&key)
            .curable(Remedy::Shim(dismissal));
    }
    let text = "no bundle refers to this shim, and it does not answer";
    Finding::new(Kind::SilentShim, subject, text).of(&key)
}

fn is_shim(process: Process) -> bool {
    let executable = process.executable();
    let name = executable.as_ref().and_then(|path| path.file_name()?.to_str());
    name.is_some_and(|name| name.starts_with(SHIM_PREFIX))
}

/// Whose shim a process is, by its command line, if it belongs to one of the state directories.
fn started_for(scene: &Scene, process: Process) -> Option<Key> {
    let arguments = process.arguments();
    let value = |flag: &str| {
        let at = arguments.iter().position(|word| word.trim_start_matches('-') == flag)?;
        arguments.get(at + 1).cloned()
    };
    let key = Key::new(value("namespace")?, value("id")?).ok()?;
    let below: PathBuf = [key.namespace.as_str(), key.id.as_str()].iter().collect();
    let dir = process.directory()?;
    scene.states.iter().any(|state| dir == state.join(&below)).then_some(key)
}

/// Whether a process has children: those of a shim are containers.
fn has_children(process: Process) -> bool {
    let list = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.pid));
    // Where the kernel does not tell, there may be some.
    list.map_or(true, |list| !list.trim().is_empty())
}
