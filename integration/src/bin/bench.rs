//! Measures the shim beside others: `bench quick|full|smoke`; see `integration::bench`. The result is shown, and written
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let effort = match words.as_slice() {
        [word] => effort::named(word),
        _ => None,
    };
    let effort = effort.ok_or_else(|| Failure::new("usage: bench quick|full|smoke"))?;
    let report = bench::run(effort, Stop::on_signals()?)?;
    let dir = paths::workspace().join("target/bench");
    report.write(&dir)?;
    let text = table::write(&report);
    io::stdout().write_all(text.as_bytes())?;
    Ok(writeln!(io::stdout(), "\n{}/report.json and report.svg have it all", dir.display())?)
}
