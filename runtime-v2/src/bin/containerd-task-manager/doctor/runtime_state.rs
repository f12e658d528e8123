//! State that an OCI runtime keeps of containers whose bundle is gone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::Value;
use tokio::{process::Command, time::timeout};

use super::{Finding, Kind, Remedy, Scene};
use crate::{places::real, procfs::Process};

/// One run of an OCI runtime that has little to do.
const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a runtime has noted of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    /// The program that has noted it.
    runtime: &'static str,
    bundle: PathBuf,
    init: Process,
}

/// Having the runtime forget a container.
#[derive(Debug)]
pub(crate) struct Removal {
    dir: PathBuf,
    note: Note,
}

/// Finds containers of the state directories looked at; those of others are not judged.
pub(super) fn without_bundle(scene: &Scene, root: &Path) -> Vec<Finding> {
    let dirs = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        paths.sort();
        paths
    };
    let containers = dirs(root).into_iter().flat_map(|namespace| dirs(&namespace));
    containers.filter_map(|dir| judge(scene, dir)).collect()
}

fn judge(scene: &Scene, dir: PathBuf) -> Option<Finding> {
    let note = read(&dir)?;
    // The bundle is gone, and perhaps its namespace; the state directory is not.
    let state = note.bundle.ancestors().nth(2).map(real)?;
    let is_of_scene = scene.states.contains(&state);
    if !is_of_scene || note.bundle.exists() || !scene.is_old(&dir) {
        return None;
    }
    if note.init.is_alive() {
        let subject = format!("process {}", note.init.pid);
        let text = format!("this container runs, but its bundle {} is gone", note.bundle.display());
        return Some(Finding::new(Kind::Orphan, subject, text));
    }
    let text = format!(
        "{} keeps this of a container that has ended and whose bundle {} is gone",
        note.runtime,
        note.bundle.display()
    );
    let finding = Finding::new(Kind::StaleState, dir.display(), text);
    Some(finding.curable(Remedy::State(Removal { dir, note })))
}

fn read(dir: &Path) -> Option<Note> {
    // Both write whole files; what cannot be read is not judged.
    let json = |name: &str| -> Option<Value> {
        serde_json::from_slice(&fs::read(dir.join(name)).ok()?).ok()
    };
    json("state.json").and_then(|state| of_runc(&state)).or_else(|| of_crun(&json("status")?))
}

fn of_runc(state: &Value) -> Option<Note> {
    let labels = state.pointer("/config/labels")?.as_array()?;
    let bundle = labels.iter().find_map(|label| label.as_str()?.strip_prefix("bundle="))?;
    let init = Process {
        pid: state.get("init_process_pid")?.as_u64()?.try_into().ok()?,
        started: number(state.get("init_process_start")?)?,
    };
    Some(Note { runtime: "runc", bundle: bundle.into(), init })
}

fn of_crun(status: &Value) -> Option<Note> {
    let init = Process {
        pid: status.get("pid")?.as_u64()?.try_into().ok()?,
        started: number(status.get("process-start-time")?)?,
    };
    Some(Note { runtime: "crun", bundle: status.get("bundle")?.as_str()?.into(), init })
}

/// runc has written this number as a text at times.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

impl Removal {
    /// Proves once more that the container has ended, then has its runtime remove it, which knows
    /// what else belongs to it.
    pub(super) async fn apply(self) -> Result<(), String> {
        let Self { dir, note } = self;
        if read(&dir).as_ref() != Some(&note) || note.init.is_alive() || note.bundle.exists() {
            return Err("it has come to life".to_owned());
        }
        let (Some(root), Some(id)) = (dir.parent(), dir.file_name()) else {
            return Err("it has no name".to_owned());
        };
        let mut command = Command::new(note.runtime);
        command.arg("--root").arg(root).args(["delete", "--force"]).arg(id);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let ran = timeout(DELETE_TIMEOUT, command.output()).await;
        let output = ran
            .map_err(|_| format!("{} takes too long", note.runtime))?
            .map_err(|error| format!("{}: {error}", note.runtime))?;
        if output.status.success() && !dir.exists() {
            return Ok(());
        }
        Err(format!("{}: {}", note.runtime, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn notes_of_both_runtimes_are_read() {
        let runc = json!({
            "init_process_pid": 7, "init_process_start": 123,
            "config": { "labels": ["a=b", "bundle=/s/ns/id"] },
        });
        let init = Process { pid: 7, started: 123 };
        let note = Note { runtime: "runc", bundle: "/s/ns/id".into(), init };
        assert_eq!(of_runc(&runc), Some(note.clone()));
        let crun = json!({ "pid": 7, "process-start-time": 123, "bundle": "/s/ns/id" });
        assert_eq!(of_crun(&crun), Some(Note { runtime: "crun", ..note }));
        for other in [json!({}), json!([]), json!({ "pid": -1 })] {
            assert_eq!(of_runc(&other).or(of_crun(&other)), None);
        }
    }
}
