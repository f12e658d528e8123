//! Plays the same calls against containerd's own shims and against the one under test, and writes what differs, and why,
//! to `docs/conformance.md`; see `integration::conformance`. Fails when a difference has no reason, or a reason no
//! difference. With the names of cases it plays those, and writes nothing.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use integration::conformance::{Comparison, compare, page, peer, reasons, script};
use integration::failure::{Context, Failure, Result};
use integration::{hybrid, paths};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "conformance: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut cases = script::cases()?;
    cases.retain(|case| wanted.is_empty() || wanted.contains(&case.name));
    let peers = peer::peers()?;
    hybrid::free_unified_hierarchy()?;
    let runtimes = [("runc".to_owned(), paths::runc()?), ("crun".to_owned(), paths::crun()?)];
    let progress = |line: &str| drop(writeln!(io::stderr(), "{line}"));
    let mut reasons = reasons::reasons()?;
    let comparison = compare(&cases, &peers, &runtimes, &reasons, progress)?;
    if wanted.is_empty() {
        // The directory has the version in its name.
        let name = |path: &Path| path.parent().unwrap_or(path).file_name().map(OsStr::to_os_string);
        let names = runtimes.iter().filter_map(|(_, path)| name(path)?.into_string().ok());
        let names: Vec<String> = names.collect();
        let page = page::page(&comparison, &reasons, &peers, &names.join(", "))?;
        let path = paths::workspace().join("docs/conformance.md");
        std::fs::write(&path, page).context(path.display())?;
    } else {
        reasons = cases.iter().flat_map(|case| reasons::of_case(&reasons, &case.name)).collect();
    }
    verdict(&comparison, &reasons)
}

fn verdict(comparison: &Comparison, reasons: &[reasons::Reason]) -> Result {
    let wrong = reasons::unexplained(reasons, comparison);
    for line in &wrong {
        writeln!(io::stdout(), "{line}")?;
    }
    let steps: usize = comparison.compared.values().sum();
    let differ = comparison.differences.len();
    writeln!(io::stdout(), "{steps} steps compared, {differ} differ, {} unexplained", wrong.len())?;
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new("not all is explained")) }
}
