//! The result within the documentation: tables between markers, so that no number there is written by hand.
//!
//! A marker is a line `<!-- measured: NAME -->`; what is between it and the line `<!-- measured: end -->` is replaced by the
//! table of that name, `machine`, `summary`, `cases` or `budgets`, or by the `picture`.

use std::fmt::Write;

use super::contender::{GO, OURS, PUBLISHED};
use super::figure::{Case, Figure};
use super::report::Report;
use super::table::{cell, groups, number};
use crate::failure::{Failure, Result};

/// What the summary is of, if it was measured.
const SUMMARY: [&str; 10] = [
    "start.exit",
    "start.answer",
    "idle.50.pss",
    "idle.50.dirty",
    "idle.cpu",
    "container.crun.added",
    "exec.crun.added",
    "container.runc.added",
    "exec.runc.added",
    "fifo.cpu",
];

/// The page with all its tables as this report has them.
///
/// # Errors
/// When a marker has no end, or a name that there is not.
pub fn fill(page: &str, report: &Report) -> Result<String> {
    const BEGIN: &str = "<!-- measured: ";
    const END: &str = "<!-- measured: end -->";
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, behind)) = rest.split_once(BEGIN) {
        let (name, behind) =
            behind.split_once(" -->\n").ok_or_else(|| Failure::new("a marker is not closed"))?;
        let (_, behind) =
            behind.split_once(END).ok_or_else(|| Failure::new(format!("{name} has no end")))?;
        let table = table(name, report)?;
        let _ = write!(filled, "{before}{BEGIN}{name} -->\n{table}{END}");
        rest = behind;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn table(name: &str, report: &Report) -> Result<String> {
    Ok(match name {
        "picture" => "\n![Bars of the cases that say most](performance.svg)\n\n".to_owned(),
        "machine" => machine(report),
        "summary" => summary(report),
        "cases" => cases(report),
        "budgets" => budgets(report),
        _ => return Err(Failure::new(format!("there is no table {name}"))),
    })
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "Measured by `bench {}` on {machine}, with a load of {} when it began:\n\n",
        report.effort, machine.load
    );
    let versions = report.versions.iter().map(|it| format!("{} ({})", it.name, it.version));
    let _ = writeln!(text, "{}.\n", versions.collect::<Vec<_>>().join(", "));
    text
}

/// A few cases, and of all contenders those whom most would choose between.
fn summary(report: &Report) -> String {
    let go = report.versions.iter().rfind(|it| it.name.starts_with(GO));
    let go = go.map_or("Go", |it| it.name.as_str());
    let mut text = format!("\n| medians | {OURS} | {go} | {PUBLISHED} |\n|---|---|---|---|\n");
    for case in SUMMARY.iter().filter_map(|id| report.cases.iter().find(|case| case.id == *id)) {
        let value =
            |who: &str| case.of(who).map_or_else(|| "-".to_owned(), |figure| number(figure.median));
        let (title, unit) = (&case.title, &case.unit);
        let columns = [OURS, go, PUBLISHED].map(value).join(" | ");
        let _ = writeln!(text, "| {title}, {unit} | {columns} |");
    }
    text.push('\n');
    text
}

fn cases(report: &Report) -> String {
    let mut text = String::from("\n");
    for group in groups(&report.cases) {
        let figures = group.first().map_or(&[][..], |case| &case.figures);
        let names: Vec<&str> = figures.iter().map(|figure| figure.who.as_str()).collect();
        let _ = writeln!(text, "| | unit | {} |", names.join(" | "));
        let _ = writeln!(text, "|---|---|{}", "---|".repeat(names.len()));
        group.iter().for_each(|case| row(&mut text, case));
        text.push('\n');
    }
    text
}

fn row(text: &mut String, case: &Case) {
    let cells: Vec<String> = case.figures.iter().map(|figure: &Figure| cell(figure)).collect();
    let _ = writeln!(text, "| {} | {} | {} |", case.title, case.unit, cells.join(" | "));
}

fn budgets(report: &Report) -> String {
    let mut text = String::from("\n| budget | measured | limit | |\n|---|---|---|---|\n");
    for budget in &report.budgets {
        let verdict = if budget.met { "met" } else { "**not met**" };
        let (value, limit) = (number(budget.value), number(budget.limit));
        let _ = writeln!(text, "| {} | {value} | {limit} | {verdict} |", budget.name);
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::budget::Budget;
    use crate::bench::machine::Machine;

    fn report() -> Report {
        let budget = Budget { name: "speed".to_owned(), value: 0.5, limit: 1.0, met: true };
        Report {
            effort: "full".to_owned(),
            machine: Machine::this(),
            versions: Vec::new(),
            cases: vec![Case::new("x", "x", "ms", OURS, vec![(OURS.to_owned(), vec![1.0])])],
            budgets: vec![budget],
            left_behind: Vec::new(),
        }
    }

    #[test]
    fn what_is_between_markers_is_replaced_again_and_again() {
        let page = "a\n<!-- measured: budgets -->\nold\n<!-- measured: end -->\nb\n";
        let once = fill(page, &report()).expect("it has one table");
        assert!(once.contains("| speed | 0.50 | 1.00 | met |"), "{once}");
        assert!(once.starts_with("a\n") && once.ends_with("\nb\n") && !once.contains("old"));
        assert_eq!(fill(&once, &report()).expect("it has it still"), once);
    }

    #[test]
    fn what_cannot_be_filled_is_said() {
        for page in ["<!-- measured: cases -->\n", "<!-- measured: no -->\n<!-- measured: end -->"]
        {
            assert!(fill(page, &report()).is_err(), "{page}");
        }
    }
}
