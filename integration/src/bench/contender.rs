//! Who is compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bundle::Bundle;
use crate::failure::{Context, Result};
use crate::fixture::Fixture;
use crate::paths;
use crate::shim::{Era, Launch};

/// A shim, and how containerds of its time start it.
#[derive(Debug, Clone)]
pub struct Contender {
    /// What it is called in reports.
    pub name: String,
    /// The version that the binary says it is.
    pub version: String,
    /// The binary.
    pub binary: PathBuf,
    era: Era,
}

/// The name of the shim under test.
pub const OURS: &str = "this shim";
/// How the names of containerd's own begin.
pub const GO: &str = "Go ";
/// The shim of the rust-extensions project.
pub const PUBLISHED: &str = "rust-extensions";

/// How each series of containerd starts its shim. Ours is started in the manner of the newest that is there.
const SERIES: [(&str, Era); 3] = [("1.6", Era::V1_6), ("1.7", Era::V1_7), ("2", Era::V2_0)];

/// All shims at hand, ours first, then containerd's from old to new.
///
/// # Errors
/// When ours is not built.
pub fn shims() -> Result<Vec<Contender>> {
    let mut found = Vec::new();
    let series = SERIES.map(|(series, era)| (paths::containerd(series), era));
    for (dir, era) in series.into_iter().chain([(Some(paths::deps().join("go-2.4")), Era::V2_3)]) {
        let Some(binary) = dir.map(|dir| dir.join("containerd-shim-runc-v2")) else { continue };
        if binary.exists() {
            let binary = installed(&binary, found.len())?;
            let version = version(&binary)?;
            let short = version.trim_start_matches('v').split(['~', '+', '-']).next();
            let name = format!("{GO}{}", short.unwrap_or_default());
            found.push(Contender { name, version, binary, era });
        }
    }
    let ours = installed(&paths::shim()?, found.len())?;
    let era = found.last().map_or(Era::V2_0, |newest| newest.era);
    let (name, version) = (OURS.to_owned(), version(&ours)?);
    found.insert(0, Contender { name, version, binary: ours, era });
    let is_shim = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("containerd-shim"))
    };
    let published = paths::entries(&paths::deps().join("rust-extensions/bin")).find(is_shim);
    if let Some(binary) = published {
        let binary = installed(&binary, found.len())?;
        // What it says of its version is another crate's.
        let (name, version) = (PUBLISHED.to_owned(), "0.2.0".to_owned());
        found.push(Contender { name, version, binary, era: Era::V2_0 });
    }
    Ok(found)
}

/// A copy of a binary, as an installation is one. What a linker has written piece by piece lies in the page cache in single
/// pages, and what was written from end to end in large pieces, which are mapped faster: that would be a lead of those whose
/// shims come out of packages.
fn installed(binary: &Path, number: usize) -> Result<PathBuf> {
    let dir = paths::workspace().join("target/bench/installed").join(number.to_string());
    fs::create_dir_all(&dir)?;
    let copy = dir.join(binary.file_name().unwrap_or_default());
    // Not over the old one: its pages would stay as they are, and it may be executed still.
    let fresh = copy.with_extension("fresh");
    fs::copy(binary, &fresh).context(binary.display())?;
    fs::rename(&fresh, &copy)?;
    Ok(copy)
}

impl Contender {
    /// A run of the binary for a bundle.
    #[must_use]
    pub fn launch<'a>(&self, fixture: &'a Fixture, bundle: &'a Bundle) -> Launch<'a> {
        Launch::new(fixture, bundle).era(self.era).binary(self.binary.clone())
    }

    /// Is it the one under test?
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.name == OURS
    }
}

/// An OCI runtime.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// `runc` or `crun`.
    pub name: &'static str,
    /// What it says of its version.
    pub version: String,
    /// The binary.
    pub binary: PathBuf,
}

impl Runtime {
    /// The runtime of a name, at a path.
    ///
    /// # Errors
    /// When it does not tell its version.
    pub fn at(name: &'static str, binary: PathBuf) -> Result<Self> {
        let output = Command::new(&binary).arg("--version").output().context(name)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().next().unwrap_or_default().rsplit(' ').next();
        Ok(Self { name, version: version.unwrap_or_default().to_owned(), binary })
    }
}

fn version(binary: &Path) -> Result<String> {
    let output = Command::new(binary).arg("-v").output().context(binary.display())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Version:"));
    Ok(line.unwrap_or("unknown").trim().to_owned())
}
