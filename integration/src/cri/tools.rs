//! Where the builds and tools are that need Go.

use std::path::PathBuf;

use crate::failure::{Failure, Result};
use crate::paths;

/// Which containerd a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The newest of upstream's that `make deps` brings in.
    Stock,
    /// The one with the task manager in it, by `make containerd`.
    Ours,
}

impl Build {
    /// The directory with `containerd` and `ctr`.
    ///
    /// # Errors
    /// When there is none, with what makes one.
    pub fn dir(self) -> Result<PathBuf> {
        match self {
            Self::Stock => {
                let dir = paths::containerd("2");
                dir.ok_or_else(|| Failure::new("no containerd 2 in this machine's mirror"))
            }
            Self::Ours => {
                let dir = paths::target().join("containerd/bin");
                built(dir.join("containerd"), "make containerd").map(|_| dir)
            }
        }
    }
}

/// crictl.
///
/// # Errors
/// When it is not built.
pub fn crictl() -> Result<PathBuf> {
    built(paths::deps().join("cri-tools/crictl"), "integration/deps/cri-tools")
}

/// critest, the tests that CRI is accepted by.
///
/// # Errors
/// When it is not built.
pub fn critest() -> Result<PathBuf> {
    built(paths::deps().join("cri-tools/critest"), "integration/deps/cri-tools")
}

/// Where Debian puts the network plugins, and other distributions do.
///
/// # Errors
/// When there are none.
pub fn network_plugins() -> Result<PathBuf> {
    let places = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"].map(PathBuf::from);
    let found = places.into_iter().find(|place| place.join("bridge").exists());
    found.ok_or_else(|| Failure::new("no network plugins (bridge, host-local): make deps"))
}

/// Why nothing of this can run here; none if it can.
#[must_use]
pub fn lacking() -> Option<String> {
    let needed = [Build::Ours.dir(), Build::Stock.dir(), crictl(), network_plugins()];
    needed.into_iter().find_map(Result::err).map(|failure| failure.to_string())
}

fn built(path: PathBuf, how: &str) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    Err(Failure::new(format!("{} is not built: {how} (needs Go)", path.display())))
}
