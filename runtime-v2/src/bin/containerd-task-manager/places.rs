//! The state directories that `ls` and `doctor` look at.

use std::path::{Path, PathBuf};

use runtime_v2::{Config, Daemon};

use crate::config::{ConfigError, Given, Settings};

/// Bundles of containerd's own plugin, below its state directory.
const STOCK_DIR: &str = "io.containerd.runtime.v2.task";

/// Which directories to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Places {
    /// State directory, of this daemon or of any containerd; may be given several times
    /// [default: that of the settings]
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,
    /// Settings, as TOML [default: /etc/containerd-task-manager/config.toml, if it is there]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Places {
    /// The file with the settings, if one is named.
    pub(crate) fn settings(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The directories that hold bundles.
    ///
    /// # Errors
    /// When the settings cannot be read.
    pub(crate) fn directories(&self) -> Result<Vec<PathBuf>, ConfigError> {
        if self.state.is_empty() {
            let settings = Settings::new(Given::default(), self.config.as_deref())?;
            return Ok(vec![real(&settings.state)]);
        }
        Ok(self.state.iter().map(|dir| bundles_of(dir)).collect())
    }
}

/// Of a containerd, people name the directory above. The path is the real one, as the kernel
/// shows it of mounts and processes: `/var/run` is a link.
fn bundles_of(dir: &Path) -> PathBuf {
    let below = dir.join(STOCK_DIR);
    let dir = if below.is_dir() { &below } else { dir };
    real(dir)
}

/// The real path of a directory; of one that is not there, the path itself.
pub(crate) fn real(dir: &Path) -> PathBuf {
    dir.canonicalize().or_else(|_| std::path::absolute(dir)).unwrap_or_else(|_| dir.into())
}

/// Surroundings for looking at bundles: their directory, and nothing that would start a shim.
pub(crate) fn surroundings(state: &Path) -> Config {
    let daemon = Daemon {
        grpc_address: String::new(),
        ttrpc_address: String::new(),
        binary: PathBuf::new(),
        version: String::new(),
    };
    Config::new(state, state, daemon)
}
