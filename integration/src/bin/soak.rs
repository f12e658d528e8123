//! Lasting work for one shim: `soak [CONTAINERS EXECS ORPHANS]`; see `integration::soak`. Fails when the shim holds more
//! afterwards than before.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use integration::failure::{Failure, Result};
use integration::scenario::scenario_lasting;
use integration::soak::{Load, Soak, describe};
use integration::{hybrid, paths};

/// What a node sees of a busy pod in months.
const LOAD: Load = Load { containers: 1000, execs: 5000, orphans: 10_000 };

/// On two busy cores it takes a third of this.
const LONGEST: Duration = Duration::from_secs(15 * 60);

fn main() -> ExitCode {
    match load().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "soak: {failure:?}");
            ExitCode::FAILURE
        }
    }
}

fn load() -> Result<Load> {
    let numbers: Vec<usize> =
        std::env::args().skip(1).map(|word| word.parse()).collect::<std::result::Result<_, _>>()?;
    match numbers.as_slice() {
        [] => Ok(LOAD),
        &[containers, execs, orphans] => Ok(Load { containers, execs, orphans }),
        _ => Err(Failure::new("usage: soak [CONTAINERS EXECS ORPHANS]")),
    }
}

fn run(load: Load) -> Result {
    let runtime = match paths::crun() {
        // The quicker runtime leaves more of the time to the shim.
        Ok(crun) => {
            hybrid::free_unified_hierarchy()?;
            crun
        }
        Err(_) => paths::runc()?,
    };
    say(&format!("{} and {}: {load:?}", paths::shim()?.display(), runtime.display()));
    let start = Instant::now();
    let outcome = Mutex::new(None);
    scenario_lasting(LONGEST, async |fixture| {
        let soak = Soak::start(fixture, runtime).await?;
        let done = soak
            .run(load, |line| say(&format!("{:>4} s  {line}", start.elapsed().as_secs())))
            .await?;
        *outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(done);
        soak.end().await
    })?;
    let outcome = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(outcome) = outcome else { return Err(Failure::new("no outcome")) };
    say(&format!("before: {}", describe(&outcome.before)));
    say(&format!("after:  {}", describe(&outcome.after)));
    outcome.check()
}

fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
