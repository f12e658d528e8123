//! How a run of the binary has to fail.

use std::time::Duration;

use super::Ran;
use crate::ensure;
use crate::ensure_eq;
use crate::failure::Result;
use crate::fixture::Fixture;
use crate::leak::{Snapshot, settle};
use crate::paths;

/// How long the end of what a failed start had begun may take to be seen.
const SETTLE: Duration = Duration::from_secs(5);

impl Ran {
    /// Checks that this run was a refusal: one line that names the thing, and nothing left, neither answer nor process
    /// nor socket nor file.
    ///
    /// # Errors
    /// When it was not.
    pub fn check_refusal(&self, fixture: &Fixture, case: &str, names: &str) -> Result {
        let said = &self.stderr;
        ensure!(!self.status.success(), "{case}: success");
        ensure!(self.status.code().is_some(), "{case}: {}", self.status);
        ensure!(self.stdout.is_empty(), "{case}: an answer on stdout");
        let is_named = said.to_lowercase().contains(&names.to_lowercase());
        ensure!(is_named, "{case}: no {names:?} in {said:?}");
        ensure!(!said.contains("panic"), "{case}: {said}");
        if !paths::is_go_shim() {
            ensure_eq!(said.trim_end().lines().count(), 1, "{case}: lines of {said:?}");
        }
        let left = settle(&fixture.scope(), &Snapshot::default(), SETTLE);
        ensure!(left.is_empty(), "{case}: left behind {left:?}");
        Ok(())
    }
}
