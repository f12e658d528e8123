//! The result for a terminal: a line for each case, a column for each contender.

use std::fmt::Write;

use super::figure::{Case, Figure};
use super::report::Report;

/// Columns of cells are as wide as the widest cell can be: number, spread, ratio.
const CELL: usize = 22;

/// The whole report as text.
#[must_use]
pub fn write(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!("{machine}, load {}\n", machine.load);
    for it in &report.versions {
        let line = format!("  {:<16} {:<24} {}", it.name, it.version, it.binary.display());
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(
        text,
        "\nEach cell: median ±spread between quartiles (this shim, as a share of it, turn by turn)\n"
    );
    for group in groups(&report.cases) {
        write_group(&mut text, group);
    }
    write_budgets(&mut text, report);
    for left in &report.left_behind {
        let _ = writeln!(text, "left behind in {left}");
    }
    text
}

/// Neighbours with the same contenders share a heading.
pub(super) fn groups(cases: &[Case]) -> impl Iterator<Item = &[Case]> {
    cases.chunk_by(|one, next| {
        let names = |case: &Case| case.figures.iter().map(|it| it.who.clone()).collect::<Vec<_>>();
        names(one) == names(next)
    })
}

fn write_group(text: &mut String, cases: &[Case]) {
    let width = cases.iter().map(|case| case.title.chars().count()).max().unwrap_or(0);
    let _ = write!(text, "{:width$}  {:6}", "", "");
    for figure in cases.first().map_or(&[][..], |case| &case.figures) {
        let _ = write!(text, " {:<CELL$}", figure.who);
    }
    text.push('\n');
    for case in cases {
        let _ = write!(text, "{:width$}  {:6}", case.title, case.unit);
        for figure in &case.figures {
            let _ = write!(text, " {:<CELL$}", cell(figure));
        }
        text.push('\n');
    }
    text.push('\n');
}

/// The median, and what is said of it.
pub(super) fn cell(figure: &Figure) -> String {
    let mut cell = number(figure.median);
    if figure.samples.len() > 1 {
        let _ = write!(cell, " ±{:.0}%", figure.spread * 50.0);
    }
    if let Some(ratio) = figure.ratio {
        let _ = write!(cell, " ({ratio:.2})");
    }
    cell
}

/// Three digits that say something.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn write_budgets(text: &mut String, report: &Report) {
    let _ = writeln!(text, "Budgets");
    for budget in &report.budgets {
        let verdict = if budget.met { "met" } else { "NOT MET" };
        let (value, limit) = (number(budget.value), number(budget.limit));
        let _ = writeln!(text, "  {:<52} {value:>8} of {limit:>6}  {verdict}", budget.name);
    }
}
