//! Measures the shim beside others: `bench quick|full|smoke [CASE...]`; see `integration::bench`. The result is shown, and written
//! to `target/bench/`.

use std::io::{self, Write};
use std::process::ExitCode;

use integration::bench::ground::Stop;
use integration::bench::{self, effort, table};
use integration::failure::{Failure, Result};
use integration::paths;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "\nbench: {failure:?}");
            ExitCode::FAILURE
        }
    }
}

/// A budget that is not met is a result, not a failure.
fn run() -> Result {
    let mut words = std::env::args().skip(1);
    let effort = words.next().and_then(|word| effort::named(&word));
    let effort = effort.ok_or_else(|| Failure::new("usage: bench quick|full|smoke [CASE...]"))?;
    let report = bench::run(effort, words.collect(), Stop::on_signals()?)?;
    let dir = paths::workspace().join("target/bench");
    report.write(&dir)?;
    let text = table::write(&report);
    io::stdout().write_all(text.as_bytes())?;
    Ok(writeln!(io::stdout(), "\n{}/report.json and report.svg have it all", dir.display())?)
}
