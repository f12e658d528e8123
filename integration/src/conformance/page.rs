//! The page for readers.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::compare::{Comparison, Difference};
use super::peer::Peer;
use super::reasons::{Reason, reason_of};

const HEAD: &str = "# How this shim differs from containerd's

One script of calls is played against containerd's own runc shims and against this one, each bare, in the manner of its
containerd, with runc and with crun. Every answer is noted, with its code and its text, and at the end of each case the
events, how the OCI runtime was called, whether the shim has ended and what is left on the machine. Below is every step
in which they differ, by the reason. A difference without a reason, or a reason without a difference, fails the tests.

Every failure of this shim begins with the container, and the exec, that it is about (`exec e of container c: `); those of
containerd's mostly do not. That is not shown below.

The script is `integration/src/conformance/calls.txt`; this page is made by `make conformance`.
";

/// Writes the page.
///
/// # Errors
/// Never for real: a string takes all.
pub fn page(
    comparison: &Comparison,
    reasons: &[Reason],
    peers: &[Peer],
    runtimes: &str,
) -> Result<String, fmt::Error> {
    let mut page = String::from(HEAD);
    writeln!(page, "\nRuntimes: {runtimes}.\n\n## Summary\n")?;
    writeln!(page, "| containerd's shim | runtime | steps | equal | different |")?;
    writeln!(page, "|---|---|---|---|---|")?;
    for ((series, runtime), steps) in &comparison.compared {
        let differ = comparison.differences.iter();
        let differ = differ.filter(|d| d.series == *series && d.runtime == *runtime).count();
        let version = version(peers, series);
        writeln!(page, "| {version} | {runtime} | {steps} | {} | {differ} |", steps - differ)?;
    }
    for (number, reason) in reasons.iter().enumerate() {
        let mine: Vec<&Difference> = comparison
            .differences
            .iter()
            .filter(|difference| reason_of(reasons, difference) == Some(reason))
            .collect();
        if !mine.is_empty() {
            writeln!(page, "\n## Reason {}\n\n{}\n", number + 1, reason.why)?;
            table(&mut page, &mine, comparison)?;
        }
    }
    Ok(page)
}

/// Rows of equal differences are one row, which says of whom it is.
fn table(page: &mut String, mine: &[&Difference], comparison: &Comparison) -> fmt::Result {
    let mut rows: Vec<(&Difference, Vec<&Difference>)> = Vec::new();
    for difference in mine {
        let same = |row: &&mut (&Difference, Vec<&Difference>)| {
            let one = row.0;
            one.step == difference.step
                && one.theirs == difference.theirs
                && one.ours == difference.ours
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.1.push(difference),
            None => rows.push((difference, vec![difference])),
        }
    }
    writeln!(page, "| case: call | containerd | its shim | this shim |\n|---|---|---|---|")?;
    for (one, all) in rows {
        let step = cell(&one.step);
        let (theirs, ours) = (cell(&one.theirs), cell(&one.ours));
        writeln!(page, "| {step} | {} | {theirs} | {ours} |", whom(&all, comparison))?;
    }
    Ok(())
}

/// Series, with the runtime where it is only one.
fn whom(all: &[&Difference], comparison: &Comparison) -> String {
    let mut by_series: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for difference in all {
        by_series.entry(difference.series).or_default().push(&difference.runtime);
    }
    let mut words = Vec::new();
    for (series, runtimes) in by_series {
        let played = comparison.compared.keys().filter(|(one, _)| *one == series).count();
        if runtimes.len() == played {
            words.push(series.to_owned());
        } else {
            words.push(format!("{series} with {}", runtimes.join(", ")));
        }
    }
    words.join(", ")
}

fn version(peers: &[Peer], series: &str) -> String {
    let peer = peers.iter().find(|peer| peer.series == series);
    peer.map_or_else(|| series.to_owned(), |peer| peer.version.clone())
}

/// Text in a table of Markdown.
fn cell(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('<', "&lt;").replace('_', "\\_");
    if text.is_empty() { "(nothing)".to_owned() } else { text }
}
