//! What containers leave on a machine: `leakcheck snapshot` writes what is there now as JSON, `leakcheck diff FILE` tells
//! what is there now and was not then, and fails if there is anything.
//!
//! It sees the whole machine, whoever made a thing; for use around work on a machine that does nothing else. The open
//! descriptors of processes that stay are counted too, for those whose pids are given to both.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use integration::failure::{Context, Failure, Result};
use integration::leak::{Scope, Snapshot, settle};

/// Ends are asynchronous: what is on its way out is given this long.
const SETTLE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["snapshot", pids @ ..] => scope(pids).and_then(|scope| snapshot(&scope)),
        ["diff", file, pids @ ..] => scope(pids).and_then(|scope| diff(&scope, file)),
        _ => Err(Failure::new("usage: leakcheck snapshot [PID...] | leakcheck diff FILE [PID...]")),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "leakcheck: {failure}");
            ExitCode::from(2)
        }
    }
}

fn scope(pids: &[&str]) -> Result<Scope> {
    let watched = pids.iter().map(|pid| pid.parse().context(format!("{pid} is no pid")));
    Ok(Scope { watched: watched.collect::<Result<_>>()?, ..Scope::machine() })
}

fn snapshot(scope: &Scope) -> Result<ExitCode> {
    let snapshot = Snapshot::take(scope);
    serde_json::to_writer(io::stdout().lock(), &snapshot)?;
    writeln!(io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn diff(scope: &Scope, file: &str) -> Result<ExitCode> {
    let before = std::fs::read(file).context(format!("reading {file}"))?;
    let before: Snapshot = serde_json::from_slice(&before).context(format!("reading {file}"))?;
    let leaked = settle(scope, &before, SETTLE);
    for item in &leaked {
        writeln!(io::stdout(), "left behind: {item}")?;
    }
    if leaked.is_empty() {
        writeln!(
            io::stdout(),
            "no process, socket, mount, cgroup, fifo, directory, loop device or watched descriptor is left behind"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
