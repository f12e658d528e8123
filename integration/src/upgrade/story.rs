//! What a story says while it is played.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

/// A story by name. Its steps are printed as they are proven; several may be played side by side, so each line says whose
/// it is.
#[derive(Debug)]
pub struct Story {
    name: String,
    steps: AtomicU32,
}

impl Story {
    /// Begins a story.
    #[must_use]
    pub fn begin(name: impl Display) -> Self {
        let story = Self { name: name.to_string(), steps: AtomicU32::new(0) };
        story.line("begins");
        story
    }

    /// A step that has been played, by what it proves.
    pub fn proven(&self, what: impl Display) {
        let step = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        self.line(format!("{step}. {what}"));
    }

    /// Something that goes wrong on purpose, or is as it is.
    pub fn aside(&self, what: impl Display) {
        self.line(format!("   ({what})"));
    }

    /// Straight to stderr: the test runner would keep what is printed from those who watch.
    fn line(&self, what: impl Display) {
        let line = format!("  {} | {what}\n", self.name);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
