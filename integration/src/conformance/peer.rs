//! The shims that are compared.

use std::path::PathBuf;
use std::process::Command;

use crate::failure::Result;
use crate::paths;
use crate::shim::Era;
use crate::task::{V2, V3};

/// A shim, and how a manager of its time speaks to it.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The series of containerd, as `make deps` calls it.
    pub series: &'static str,
    /// The version that the binary says it is.
    pub version: String,
    /// The binary.
    pub binary: PathBuf,
    /// How it is started.
    pub era: Era,
    /// The service that it serves.
    pub service: &'static str,
}

/// The manners of each series: how `start` is called, and which service is spoken.
const MANNERS: [(&str, Era, &str); 3] =
    [("1.6", Era::V1_6, V2), ("1.7", Era::V1_7, V2), ("2", Era::V2_0, V3)];

/// containerd's own shims at hand, oldest first.
///
/// # Errors
/// When one that is there does not say its version.
pub fn peers() -> Result<Vec<Peer>> {
    let mut found = Vec::new();
    for (series, era, service) in MANNERS {
        let Some(dir) = paths::containerd(series) else { continue };
        let binary = dir.join("containerd-shim-runc-v2");
        if binary.exists() {
            let version = version(&binary)?;
            found.push(Peer { series, version, binary, era, service });
        }
    }
    Ok(found)
}

impl Peer {
    /// The shim under test, spoken to as this one is.
    ///
    /// # Errors
    /// When it is not built.
    pub fn ours(&self) -> Result<Self> {
        let binary = paths::shim()?;
        Ok(Self { version: version(&binary)?, binary, ..self.clone() })
    }
}

fn version(binary: &std::path::Path) -> Result<String> {
    let output = Command::new(binary).arg("-v").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Version:"));
    Ok(line.unwrap_or("unknown").trim().to_owned())
}
