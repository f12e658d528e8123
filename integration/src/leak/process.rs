//! Processes of a scope: those that carry its token, and all their descendants.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Item, Kind, Scope};
use crate::paths::entries;

/// The environment variable by which a fixture marks what it starts.
pub const MARKER: &str = "INTEGRATION_TOKEN";

/// Programs that a snapshot of the whole machine looks for, by the start of their names; with all their descendants.
const PROGRAMS: [&str; 6] = ["containerd", "runc", "crun", "fakerunc", "fakeshim", "integration-"];

/// What `/proc` says of one process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    parent: i32,
    started: u64,
    state: char,
    command: String,
    marks: String,
}

impl Process {
    /// Reads one process; none if it is gone.
    fn read(dir: &Path) -> Option<Self> {
        let pid = dir.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        // The name is in brackets and may contain anything, brackets too.
        let (head, tail) = stat.rsplit_once(") ")?;
        let name = head.split_once('(')?.1;
        let fields: Vec<&str> = tail.split(' ').collect();
        let text = |file: &str| {
            let bytes = fs::read(dir.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let link = |file: &str| fs::read_link(dir.join(file)).unwrap_or_default();
        let command = match text("cmdline") {
            empty if empty.is_empty() => format!("[{name}]"),
            command => command.trim_end().to_owned(),
        };
        let places =
            [link("cwd"), link("root"), link("exe")].map(|path| path.display().to_string());
        let marks = [command.clone(), text("environ"), text("cgroup"), places.join(" ")].join("\n");
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            state: fields.first()?.chars().next()?,
            command,
            marks,
        })
    }

    fn is_of(&self, scope: &Scope) -> bool {
        if scope.token.is_some() {
            return scope.claims(&self.marks);
        }
        let program = self.command.split(' ').next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default().trim_start_matches('[');
        PROGRAMS.iter().any(|start| name.starts_with(start))
    }

    fn into_item(self) -> Item {
        let zombie = if self.state == 'Z' { " (zombie)" } else { "" };
        let detail = format!("{}{zombie}, parent {}", self.command, self.parent);
        Item { kind: Kind::Process, name: format!("{}@{}", self.pid, self.started), detail }
    }
}

/// Processes of the scope, never this one: by mark, and whatever descends from a marked one (a zombie, or a process that
/// cleared its environment, has no marks left, but its parent is known).
pub(super) fn find_processes(scope: &Scope) -> Vec<Process> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let all: BTreeMap<i32, Process> = entries(&PathBuf::from("/proc"))
        .filter_map(|dir| Process::read(&dir))
        .filter(|process| process.pid != own)
        .map(|process| (process.pid, process))
        .collect();
    let mut of_scope: BTreeSet<i32> =
        all.values().filter(|process| process.is_of(scope)).map(|process| process.pid).collect();
    loop {
        let children: Vec<i32> = all
            .values()
            .filter(|process| {
                of_scope.contains(&process.parent) && !of_scope.contains(&process.pid)
            })
            .map(|process| process.pid)
            .collect();
        if children.is_empty() {
            break;
        }
        of_scope.extend(children);
    }
    all.into_values().filter(|process| of_scope.contains(&process.pid)).collect()
}

pub(super) fn find(scope: &Scope) -> Vec<Item> {
    find_processes(scope).into_iter().map(Process::into_item).collect()
}
