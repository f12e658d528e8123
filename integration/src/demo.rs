//! The frame of every demo: like a test's, with a page for a person instead of a verdict for the runner.
//!
//! Everything lives in a fixture: a directory, a namespace and daemons of its own. Whatever happens, Ctrl-C included, it
//! ends with a look at what is left on the machine, and fails if that is anything.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::leak::{Item, Kind, Snapshot, settle, sweep};
use crate::page::Page;

/// How long ends may take to be seen after everything was deleted.
const SETTLE: Duration = Duration::from_secs(10);

/// Shows scenes, which say whether all went well, and then what is left of them.
#[must_use]
pub fn show<F>(scenes: F) -> ExitCode
where
    F: AsyncFnOnce(&mut Page, &Fixture) -> Result<bool>,
{
    let mut page = Page::new();
    match run(&mut page, scenes) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            page.bad("demo", &format!("{failure:?}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs it all; true if nothing is off.
fn run<F>(page: &mut Page, scenes: F) -> Result<bool>
where
    F: AsyncFnOnce(&mut Page, &Fixture) -> Result<bool>,
{
    let start = Instant::now();
    let fixture = Fixture::new()?;
    let before = Snapshot::take(&fixture.scope());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            outcome = scenes(page, &fixture) => outcome,
            _ = interrupt.recv() => Err(Failure::new("interrupted")),
            _ = terminate.recv() => Err(Failure::new("terminated")),
        }
    });
    runtime.shutdown_background();
    let finished = matches!(outcome, Ok(true));
    // After a failure or Ctrl-C things are left by right: they are removed, not proven to be gone.
    let limit = if finished { SETTLE } else { Duration::ZERO };
    let left = settle(&fixture.scope(), &before, limit);
    sweep(&fixture.scope());
    let _ = std::fs::remove_dir_all(fixture.dir());
    conclude(page, finished, &left, start.elapsed());
    outcome.map(|good| good && left.is_empty())
}

fn conclude(page: &mut Page, finished: bool, left: &[Item], took: Duration) {
    page.title("what is left on this machine");
    if !finished {
        page.note(
            "not looked for, since not all went well: everything the demo made has been removed",
        );
        return;
    }
    let count = |kind: Kind| left.iter().filter(|item| item.kind == kind).count();
    let counted = [
        ("processes", Kind::Process),
        ("sockets", Kind::Socket),
        ("mounts", Kind::Mount),
        ("cgroups", Kind::Cgroup),
        ("fifos", Kind::Fifo),
        ("files and directories", Kind::File),
    ];
    let line: Vec<String> =
        counted.iter().map(|(name, kind)| format!("{} {name}", count(*kind))).collect();
    if left.is_empty() {
        page.good("nothing", &line.join(", "), None);
    } else {
        page.bad("left behind", &line.join(", "));
        for item in left {
            page.note(&item.to_string());
        }
    }
    page.note(&format!("{:.1} s in all", took.as_secs_f64()));
}
