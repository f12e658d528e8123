//! What a person sees who watches a demo: lines on standard output, coloured where that is a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::failure::Result;

/// What there is to see of a scene, and when it began.
#[derive(Debug)]
pub struct Shown {
    /// What to say of it.
    pub text: String,
    /// When it began.
    pub start: Instant,
}

/// Standard output, written line by line.
#[derive(Debug)]
pub struct Page {
    colour: bool,
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

impl Page {
    /// A page that has nothing on it.
    #[must_use]
    pub fn new() -> Self {
        Self { colour: io::stdout().is_terminal() }
    }

    /// A new section.
    pub fn title(&mut self, text: &str) {
        self.line(&format!("\n{}", self.paint("1", text)));
    }

    /// Something that went as it should, and how long it took.
    pub fn good(&mut self, what: &str, text: &str, took: Option<Duration>) {
        let took = took.map(|took| format!("{:>5} ms", took.as_millis())).unwrap_or_default();
        let mark = self.paint("32", "ok");
        self.line(&format!("  {mark}  {what:<12} {text:<74} {}", self.paint("2", &took)));
    }

    /// A scene, whichever way it went; true if well.
    pub fn tell(&mut self, what: &str, scene: Result<Shown>) -> bool {
        match scene {
            Ok(shown) => {
                self.good(what, &shown.text, Some(shown.start.elapsed()));
                true
            }
            Err(failure) => {
                self.bad(what, &format!("{failure:?}"));
                false
            }
        }
    }

    /// Something that did not.
    pub fn bad(&mut self, what: &str, text: &str) {
        let mark = self.paint("31;1", "!!");
        self.line(&format!("  {mark}  {what:<12} {text}"));
    }

    /// Something that could not be shown here.
    pub fn skipped(&mut self, what: &str, why: &str) {
        let mark = self.paint("33", "--");
        self.line(&format!("  {mark}  {what:<12} skipped: {why}"));
    }

    /// A remark.
    pub fn note(&mut self, text: &str) {
        self.line(&self.paint("2", &format!("      {text}")));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn line(&self, text: &str) {
        // A reader that has gone, as `head` does, is no reason to stop cleaning up.
        let _ = writeln!(io::stdout(), "{}", text.trim_end());
    }
}
