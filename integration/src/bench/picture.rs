//! The result as a picture: bars, as short as they are good, for those cases that say most.

use std::fmt::Write;

use super::contender::OURS;
use super::figure::{Case, Figure};
use super::node::MANAGER;
use super::report::Report;
use super::table::number;

const WIDTH: usize = 760;
/// Where bars begin, and how long the longest is.
const LEFT: usize = 150;
const LONGEST: f64 = 440.0;
const BAR: usize = 18;
const HEADING: usize = 34;
const GAP: usize = 14;

/// The cases that are drawn, if they were measured.
const SHOWN: [&str; 9] = [
    "start.exit",
    "start.answer",
    "idle.50.pss",
    "idle.50.dirty",
    "idle.cpu",
    "container.crun",
    "exec.crun",
    "fifo.cpu",
    "reload",
];

/// An SVG.
#[must_use]
pub fn draw(report: &Report) -> String {
    let shown = SHOWN.iter().filter_map(|id| report.cases.iter().find(|case| case.id == *id));
    let mut body = String::new();
    let mut top = GAP;
    for case in shown {
        top = draw_case(&mut body, case, top) + GAP;
    }
    let machine = &report.machine;
    let where_measured =
        format!("{} processors, Linux {}; medians", machine.processors, machine.kernel);
    let _ = writeln!(body, "{}", text(GAP, top + GAP, "note", &where_measured));
    let height = top + 2 * GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<style>\n\
         text {{ font: 13px sans-serif; fill: #24292f; }}\n\
         .title {{ font-weight: bold; }}\n.note {{ fill: #6e7781; }}\n\
         .ours {{ fill: #c4501b; }}\n.other {{ fill: #8c959f; }}\n</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Draws one case and gives where it ends.
fn draw_case(body: &mut String, case: &Case, top: usize) -> usize {
    let title = if case.unit.is_empty() {
        case.title.clone()
    } else {
        format!("{}, {}", case.title, case.unit)
    };
    let _ = writeln!(body, "{}", text(GAP, top + 16, "title", &title));
    let most = case.figures.iter().map(|figure| figure.median).fold(f64::MIN_POSITIVE, f64::max);
    let mut line = top + HEADING - BAR / 2;
    for figure in &case.figures {
        let _ = writeln!(body, "{}", bar(figure, most, line));
        line += BAR + 4;
    }
    line
}

fn bar(figure: &Figure, most: f64, line: usize) -> String {
    let length = (figure.median.max(0.0) / most * LONGEST).max(1.0);
    let class = if figure.who == OURS || figure.who == MANAGER { "ours" } else { "other" };
    let value = match figure.ratio {
        Some(ratio) => format!("{} (x {ratio:.2})", number(figure.median)),
        None => number(figure.median),
    };
    let rect = format!(
        "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{line}\" width=\"{length:.1}\" height=\"{BAR}\"/>"
    );
    let behind = LEFT as f64 + length + 6.0;
    let base = line + 14;
    let name = text(GAP, base, "name", &figure.who);
    format!("{name}\n{rect}\n<text x=\"{behind:.1}\" y=\"{base}\">{}</text>", escape(&value))
}

fn text(x: usize, y: usize, class: &str, words: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(words))
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
