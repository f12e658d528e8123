//! Who may run a node's containers.

use std::fmt;
use std::path::PathBuf;

use crate::paths;

/// The series that lends containerd's other halves (images, snapshots, records) when the task manager plays.
pub const BEHIND: &str = "2";

/// A player.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Player {
    /// containerd as released, of a series.
    Stock(&'static str),
    /// The task manager on containerd's own directories. The harness calls it as the plugin of a containerd build does.
    Ours,
    /// containerd, built with that plugin.
    Build,
}

impl fmt::Display for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stock(series) => write!(f, "containerd {series}"),
            Self::Ours => f.write_str("our manager"),
            Self::Build => f.write_str("our build of containerd"),
        }
    }
}

impl Player {
    /// Why this machine has no such player.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Stock(series) => paths::containerd(series)
                .is_none()
                .then(|| format!("no containerd {series} in this machine's mirror")),
            Self::Ours => Self::Stock(BEHIND).missing(),
            Self::Build => paths::containerd(paths::BUILT)
                .is_none()
                .then(|| "containerd is not built with the plugin: make containerd".to_owned()),
        }
    }

    /// Whether the software of this workspace runs the tasks.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Build)
    }

    /// Whether its client can say that a container belongs to a sandbox.
    #[must_use]
    pub fn keeps_sandboxes(self) -> bool {
        self != Self::Stock("1.6")
    }

    /// The directory of its programs.
    #[must_use]
    pub fn programs(self) -> Option<PathBuf> {
        match self {
            Self::Stock(series) => paths::containerd(series),
            Self::Ours => paths::containerd(BEHIND),
            Self::Build => paths::containerd(paths::BUILT),
        }
    }
}
