//! The freezer: whether a container's processes are held, and letting them go.
//!
//! A v1 cgroup that is frozen holds even SIGKILL back until it is thawed; v2 does not.

use std::fs;
use std::path::{Path, PathBuf};

use runtime_proto::errdefs::Code;

use super::layout::Layout;
use super::{Cgroup, no_cgroup};
use crate::error::{Error, Result};

/// Whether the processes of a cgroup run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreezerState {
    /// They run.
    Thawed,
    /// Some are held, others not yet (v1 only).
    Freezing,
    /// They are held.
    Frozen,
}

impl Cgroup {
    /// Whether the cgroup asked its processes to stand still.
    ///
    /// # Errors
    /// NotFound when the cgroup or its freezer does not exist.
    pub fn freezer_state(&self) -> Result<FreezerState> {
        let file = self.freezer_file()?;
        let content = fs::read(&file).map_err(|error| failed("read", &file, error))?;
        parse(&content).ok_or_else(|| {
            let text = String::from_utf8_lossy(&content).into_owned();
            Error::new(Code::Unknown, format!("{}: unknown state {text:?}", file.display()))
        })
    }

    /// Lets the processes run, whoever froze them.
    ///
    /// # Errors
    /// NotFound when the cgroup or its freezer does not exist.
    pub fn thaw(&self) -> Result<()> {
        let file = self.freezer_file()?;
        let word = if self.is_unified() { "0" } else { "THAWED" };
        fs::write(&file, word).map_err(|error| failed("write", &file, error))
    }

    fn freezer_file(&self) -> Result<PathBuf> {
        let directory = self.layout().controller("freezer").ok_or_else(no_cgroup)?;
        Ok(directory.join(match self.layout() {
            Layout::V1(_) => "freezer.state",
            Layout::Unified { .. } => "cgroup.freeze",
        }))
    }
}

pub(crate) fn parse(content: &[u8]) -> Option<FreezerState> {
    match content.trim_ascii() {
        b"THAWED" | b"0" => Some(FreezerState::Thawed),
        b"FREEZING" => Some(FreezerState::Freezing),
        b"FROZEN" | b"1" => Some(FreezerState::Frozen),
        _ => None,
    }
}

fn failed(verb: &str, file: &Path, error: std::io::Error) -> Error {
    Error::io(format!("{verb} {}", file.display()), error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frozen_in(state: &str) -> (tempfile::TempDir, Cgroup) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("freezer.state"), state).unwrap();
        let layout = Layout::v1(&["freezer"], directory.path());
        (directory, Cgroup::from(layout))
    }

    #[test]
    fn states_are_read_in_the_words_of_both_versions() {
        for (text, state) in [
            (&b"THAWED\n"[..], Some(FreezerState::Thawed)),
            (b"FREEZING\n", Some(FreezerState::Freezing)),
            (b"FROZEN\n", Some(FreezerState::Frozen)),
            (b"0\n", Some(FreezerState::Thawed)),
            (b"1\n", Some(FreezerState::Frozen)),
            (b"", None),
        ] {
            assert_eq!(parse(text), state);
        }
    }

    #[test]
    fn thawing_writes_the_word_of_v1() {
        let (directory, cgroup) = frozen_in("FROZEN\n");
        assert_eq!(cgroup.freezer_state().unwrap(), FreezerState::Frozen);
        cgroup.thaw().unwrap();
        assert_eq!(fs::read(directory.path().join("freezer.state")).unwrap(), b"THAWED");
    }

    #[test]
    fn without_a_freezer_the_error_says_not_found() {
        let nowhere = Layout::v1(&["freezer"], Path::new("/nonexistent/cgroup"));
        for layout in [nowhere, Layout::v1(&["memory"], Path::new("/"))] {
            let cgroup = Cgroup::from(layout);
            assert_eq!(cgroup.freezer_state().unwrap_err().kind(), Code::NotFound);
            assert_eq!(cgroup.thaw().unwrap_err().kind(), Code::NotFound);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..20)) {
            let _ = parse(&text);
        }
    }
}
