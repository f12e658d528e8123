//! The shim binaries that may lie on the node's disk.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::paths;

/// The name that all of them have.
const V2: &str = "containerd-shim-runc-v2";

/// A shim binary, by where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShimBinary {
    /// `containerd-shim-runc-v2` of a containerd series.
    Go(&'static str),
    /// The shim under test.
    Ours,
}

impl fmt::Display for ShimBinary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Go(series) => write!(f, "Go's shim of {series}"),
            Self::Ours => f.write_str("our shim"),
        }
    }
}

impl ShimBinary {
    fn file(self) -> Result<PathBuf> {
        match self {
            Self::Ours => paths::shim(),
            Self::Go(series) => series_file(series, V2),
        }
    }

    /// Puts it on the disk as a package does: beside, then renamed over what had the name, so that a running process keeps
    /// the file it was started from, and nobody meets half of one.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn install(self, fixture: &Fixture) -> Result {
        install(fixture, V2, self.file()?)
    }
}

/// Leaves half of the binary on the disk, as a copy does that was broken off.
///
/// # Errors
/// When there is none.
pub fn break_off(fixture: &Fixture) -> Result {
    let (new, place) = (fixture.bin().join(".new"), fixture.bin().join(V2));
    fs::copy(&place, &new)?;
    let file = fs::File::options().write(true).open(&new)?;
    file.set_len(file.metadata()?.len() / 2)?;
    Ok(fs::rename(&new, &place)?)
}

/// Takes the binary away, as a package does that puts its shims elsewhere.
///
/// # Errors
/// When there is none.
pub fn take_away(fixture: &Fixture) -> Result {
    Ok(fs::remove_file(fixture.bin().join(V2))?)
}

/// Puts `containerd-shim-runc-v1` of a series on the disk, which has a process for every container.
///
/// # Errors
/// When the series has none.
pub fn install_v1(fixture: &Fixture, series: &str) -> Result {
    install(fixture, "containerd-shim-runc-v1", series_file(series, "containerd-shim-runc-v1")?)
}

fn install(fixture: &Fixture, name: &str, from: PathBuf) -> Result {
    let (new, place) = (fixture.bin().join(".new"), fixture.bin().join(name));
    fs::copy(&from, &new).context(format!("copying {}", from.display()))?;
    fs::rename(&new, &place).context(format!("replacing {}", place.display()))
}

fn series_file(series: &str, name: &str) -> Result<PathBuf> {
    let file = paths::containerd(series).map(|bin| bin.join(name));
    file.filter(|file| file.exists())
        .ok_or_else(|| Failure::new(format!("no {name} of containerd {series}: make deps")))
}
