//! `ls`: the shims of a state directory, as they answer now.

use std::{error::Error, path::Path, time::Duration};

use runtime_v2::{
    ProcessState,
    inspect::{Alive, Inspected, ShimState, TaskState, inspect},
};
use serde::Serialize;

use crate::{
    convert, output,
    places::{Places, surroundings},
    procfs::Process,
};

/// Options of `ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
    /// Only this namespace
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line.
#[derive(Debug, Serialize)]
struct Row {
    namespace: String,
    id: String,
    /// What the shim says of the task, or what is wrong with the shim.
    status: String,
    /// Process of the container's init.
    pid: Option<u32>,
    shim_pid: Option<u32>,
    /// Version of the task API that the shim speaks.
    api: Option<i32>,
    memory_kb: Option<u64>,
    age_seconds: Option<u64>,
    address: Option<String>,
    sandbox: Option<String>,
    bundle: String,
}

/// Prints them.
///
/// # Errors
/// When a state directory cannot be read.
pub(crate) async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    for state in options.places.directories()? {
        rows.extend(rows_of(&state).await?);
    }
    if let Some(wanted) = &options.namespace {
        rows.retain(|row| row.namespace == *wanted);
    }
    if options.json {
        return Ok(output::json(&rows)?);
    }
    let headings =
        ["NAMESPACE", "CONTAINER", "STATUS", "PID", "SHIM", "API", "MEMORY", "AGE", "ADDRESS"];
    let lines: Vec<Vec<String>> = rows.into_iter().map(Row::cells).collect();
    Ok(output::table(&headings, &lines)?)
}

async fn rows_of(state: &Path) -> Result<Vec<Row>, Box<dyn Error>> {
    Ok(inspect(&surroundings(state)).await?.into_iter().map(row).collect())
}

fn row(found: Inspected) -> Row {
    let key = found.bundle.key();
    let mut row = Row {
        namespace: key.namespace.to_string(),
        id: key.id.to_string(),
        status: String::new(),
        pid: found.init_pid,
        shim_pid: None,
        api: None,
        memory_kb: None,
        age_seconds: None,
        address: None,
        sandbox: found.sandbox,
        bundle: found.bundle.path().display().to_string(),
    };
    match found.shim {
        ShimState::Unnoted => row.status = "no shim".into(),
        ShimState::Garbled(_) => row.status = "unreadable".into(),
        ShimState::Dead { location } => {
            (row.status, row.address) = ("shim dead".into(), Some(location.address));
        }
        ShimState::Silent { location, .. } => {
            (row.status, row.address) = ("shim silent".into(), Some(location.address));
        }
        ShimState::Alive(alive) => row.fill(alive),
    }
    row
}

impl Row {
    fn fill(&mut self, alive: Alive) {
        let process = Process::find(alive.pid);
        self.shim_pid = (alive.pid != 0).then_some(alive.pid);
        self.api = Some(alive.location.version);
        self.address = Some(alive.location.address);
        self.memory_kb = process.and_then(Process::proportional_memory);
        self.age_seconds = process.and_then(Process::age).map(|age| age.as_secs());
        match alive.task {
            TaskState::Has(ProcessState { pid, status, .. }) => {
                self.status = convert::status_name(status).into();
                self.pid = (pid != 0).then_some(pid);
            }
            TaskState::HasNone => self.status = "no task".into(),
            TaskState::Unclear(_) => self.status = "unknown".into(),
        }
    }

    fn cells(self) -> Vec<String> {
        fn text(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "-".to_owned(), |value| value.to_string())
        }
        vec![
            self.namespace,
            self.id,
            self.status,
            text(self.pid),
            text(self.shim_pid),
            text(self.api),
            text(self.memory_kb.map(|kb| format!("{kb} kB"))),
            text(self.age_seconds.map(|age| age_text(Duration::from_secs(age)))),
            text(self.address),
        ]
    }
}

/// An age in its largest unit that is at least two.
fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_one_unit() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(age_text(Duration::from_secs(seconds)), text);
        }
    }
}
