//! Measures the shim and the task manager beside others: `bench quick|full|smoke [CASE...]`; see `integration::bench`. The
//! result is shown, and written to `target/bench/`. `bench docs` puts what is written there into the documentation.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use integration::bench::ground::Stop;
use integration::bench::report::Report;
use integration::bench::{self, effort, markdown, table};
use integration::failure::{Context, Failure, Result};
use integration::paths;

/// The pages with tables of what was measured.
const PAGES: [&str; 2] = ["README.md", "docs/performance.md"];

/// The picture in them.
const PICTURE: &str = "docs/performance.svg";

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
    let word = words.next().unwrap_or_default();
    if word == "docs" {
        return document();
    }
    let usage = "usage: bench quick|full|smoke [CASE...] | bench docs";
    let effort = effort::named(&word).ok_or_else(|| Failure::new(usage))?;
    let report = bench::run(effort, words.collect(), Stop::on_signals()?)?;
    let dir = paths::workspace().join("target/bench");
    let before = Report::read(&dir).ok();
    report.write(&dir)?;
    let mut out = io::stdout();
    out.write_all(table::write(&report).as_bytes())?;
    let before = before.filter(|before| before.effort == report.effort);
    for difference in before.iter().flat_map(|before| report.differences(before)) {
        writeln!(out, "another verdict than in the run before: {difference}")?;
    }
    Ok(writeln!(out, "\n{}/report.json and report.svg have it all", dir.display())?)
}

/// Puts the tables and the picture of the last run into the pages.
fn document() -> Result {
    let top = paths::workspace();
    let dir = top.join("target/bench");
    let report = Report::read(&dir).context("there is nothing yet: make bench")?;
    for page in PAGES.map(|page| top.join(page)) {
        let text = fs::read_to_string(&page).context(page.display())?;
        fs::write(&page, markdown::fill(&text, &report).context(page.display())?)?;
    }
    fs::copy(dir.join("report.svg"), top.join(PICTURE)).context(PICTURE).map(drop)
}
