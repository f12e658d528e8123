//! What the commands print: tables for people, JSON for programs.

use std::io::{self, Write, stdout};

use serde::Serialize;

/// Prints rows under their headings, in columns as wide as needed.
///
/// # Errors
/// When stdout is gone.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(headings.get(column).map(|heading| heading.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut out = stdout().lock();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| -> io::Result<()> {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let text = padded.collect::<Vec<_>>().join("  ");
        writeln!(out, "{}", text.trim_end())
    };
    let mut all = || {
        line(&mut headings.iter().copied())?;
        rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
    };
    read_on(all())
}

/// Prints a value as one JSON document.
///
/// # Errors
/// When stdout is gone.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    let mut out = stdout().lock();
    let written = serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from);
    read_on(written.and_then(|()| writeln!(out)))
}

/// Prints a line.
///
/// # Errors
/// When stdout is gone.
pub(crate) fn line(text: &str) -> io::Result<()> {
    read_on(writeln!(stdout().lock(), "{text}"))
}

/// A reader that has seen enough, such as `head`, is no failure.
fn read_on(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })
}
