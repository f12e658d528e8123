//! The frame around every test: a fixture before, proof that nothing is left after.

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tokio::runtime::Builder;

use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::leak::{Item, Snapshot, settle, sweep};

/// Finds a test that hangs. Far above what the longest takes on a busy machine.
const LONGEST: Duration = Duration::from_secs(300);

/// How long ends may take to be seen after the last answer: a shim's exit, the kernel's clean-up of a cgroup.
const SETTLE: Duration = Duration::from_secs(10);

/// Runs a test on ground of its own and fails if it fails, or if anything is left of it afterwards.
///
/// Whatever happened, the machine is put in order: processes of the fixture are killed, its mounts, cgroups, sockets and
/// files removed. So a failing test makes no other one fail.
///
/// # Errors
/// The test's own failure, or the list of what leaked.
///
/// # Panics
/// With the test's own panic.
pub fn scenario<F>(test: F) -> Result
where
    F: AsyncFnOnce(&Fixture) -> Result,
{
    scenario_settling(SETTLE, test)
}

/// As [`scenario`], with a time of one's own for ends to be seen.
///
/// # Errors
/// As [`scenario`].
///
/// # Panics
/// As [`scenario`].
pub fn scenario_settling<F>(settling: Duration, test: F) -> Result
where
    F: AsyncFnOnce(&Fixture) -> Result,
{
    witnessed(LONGEST, settling, test).and_then(nothing_left)
}

/// As [`scenario`], for work that takes longer than a test and has a result.
///
/// # Errors
/// As [`scenario`].
///
/// # Panics
/// As [`scenario`].
pub fn scenario_lasting<F, T>(longest: Duration, test: F) -> Result<T>
where
    F: AsyncFnOnce(&Fixture) -> Result<T>,
{
    witnessed(longest, SETTLE, test).and_then(nothing_left)
}

/// As [`scenario_lasting`], for those to whom what is left behind is a result too. It is removed all the same.
///
/// # Errors
/// The test's own failure.
///
/// # Panics
/// With the test's own panic.
pub fn witnessed<F, T>(longest: Duration, settling: Duration, test: F) -> Result<(T, Vec<Item>)>
where
    F: AsyncFnOnce(&Fixture) -> Result<T>,
{
    let fixture = Fixture::new()?;
    let before = Snapshot::take(&fixture.scope());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let limited = tokio::time::timeout(longest, test(&fixture)).await;
            limited.unwrap_or_else(|_| Err(Failure::new(format!("the test hangs for {longest:?}"))))
        })
    }));
    // Collectors and stand-ins that the test left running end here, and with them their sockets.
    runtime.shutdown_background();
    let scope = fixture.scope();
    let failed = !matches!(outcome, Ok(Ok(_)));
    let limit = if failed { Duration::ZERO } else { settling };
    let leaked = settle(&scope, &before, limit);
    sweep(&scope);
    if !keep() {
        let _ = std::fs::remove_dir_all(fixture.dir());
    }
    match outcome {
        Err(panic) => resume_unwind(panic),
        Ok(result) => result.map(|value| (value, leaked)),
    }
}

fn nothing_left<T>((value, leaked): (T, Vec<Item>)) -> Result<T> {
    if leaked.is_empty() {
        return Ok(value);
    }
    let list: Vec<String> = leaked.iter().map(ToString::to_string).collect();
    Err(Failure::new(format!("left behind:\n  {}", list.join("\n  "))))
}

/// `KEEP=1` leaves the directories of fixtures for a look at them.
fn keep() -> bool {
    std::env::var_os("KEEP").is_some_and(|value| !value.is_empty())
}

/// Ends a test that this machine cannot run, by name and reason: never silently, never as a success.
///
/// The test runner knows no such end, so the names go to the file that `SKIPPED` names, which `make test` counts.
///
/// # Errors
/// When the file cannot be written.
pub fn skip(reason: &str) -> Result {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    if let Some(path) = std::env::var_os("SKIPPED") {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())?;
    }
    std::io::stderr().write_all(format!("skipped: {line}").as_bytes())?;
    Ok(())
}
