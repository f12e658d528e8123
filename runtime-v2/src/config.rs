//! What the manager is told about its surroundings. Nothing here has a path built in.

use std::{env, path::PathBuf, time::Duration};

use crate::error::{Error, Result};

/// The longest socket directory that leaves room for a socket's name within `sun_path`
/// (containerd pkg/shim/util_unix.go: 106 bytes less 64 of the name).
pub const MAX_SOCKET_DIR: usize = 42;

/// Surroundings of a manager.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of the bundles, such as `/run/containerd/io.containerd.runtime.v2.task`.
    pub state: PathBuf,
    /// Directory of the bundles' work directories, which outlive a reboot.
    pub root: PathBuf,
    /// What shims are told about the daemon they belong to.
    pub daemon: Daemon,
    /// Further environment of `start`, later entries winning.
    pub env: Vec<(String, String)>,
    /// Where shims shall put their sockets, if not at their default.
    pub socket_dir: Option<PathBuf>,
    /// Whether shims write debug logs.
    pub debug: bool,
    /// Directories in which shim binaries are looked for, in order.
    pub search: Vec<PathBuf>,
    /// How long shims are waited for.
    pub timeouts: Timeouts,
}

/// How long shims are waited for, as far as a containerd lets its operators say so. All other
/// limits follow from what is waited for, and are where that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For all that is asked about one bundle at load.
    pub load: Duration,
    /// For one step of removing what a shim has left.
    pub cleanup: Duration,
    /// For a shim that is asked to end; it has little to do then.
    pub shutdown: Duration,
}

/// containerd's own.
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            load: Duration::from_secs(5),
            cleanup: Duration::from_secs(5),
            shutdown: Duration::from_secs(3),
        }
    }
}

/// The daemon as shims see it.
#[derive(Debug, Clone)]
pub struct Daemon {
    /// Address of its gRPC socket; part of the name of every shim's socket.
    pub grpc_address: String,
    /// Address of its ttrpc socket, where shims send events.
    pub ttrpc_address: String,
    /// Its executable, which old shims run to publish events.
    pub binary: PathBuf,
    /// Its version.
    pub version: String,
}

impl Config {
    /// A configuration with these directories and daemon, and the defaults for the rest.
    pub fn new(state: impl Into<PathBuf>, root: impl Into<PathBuf>, daemon: Daemon) -> Self {
        Self {
            state: state.into(),
            root: root.into(),
            daemon,
            env: Vec::new(),
            socket_dir: None,
            debug: false,
            search: default_search(),
            timeouts: Timeouts::default(),
        }
    }

    /// Checks what can be checked without touching anything.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the setting.
    pub fn check(&self) -> Result<()> {
        use runtime_proto::errdefs::Code::InvalidArgument;
        for (name, path) in [("state", &self.state), ("root", &self.root)] {
            if !path.is_absolute() {
                let text = format!("{name} directory {} is not absolute", path.display());
                return Err(Error::new(InvalidArgument, text));
            }
        }
        let Some(dir) = &self.socket_dir else { return Ok(()) };
        let length = dir.as_os_str().len();
        if !dir.is_absolute() || length > MAX_SOCKET_DIR {
            let text = format!(
                "socket directory {} must be absolute and at most {MAX_SOCKET_DIR} bytes long, \
                 it has {length}",
                dir.display()
            );
            return Err(Error::new(InvalidArgument, text));
        }
        Ok(())
    }
}

/// `PATH`, then the directory of this very executable, as containerd does. The working directory
/// is left out: a daemon must not run what happens to lie where it was started.
fn default_search() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_path_buf()));
    env::split_paths(&path).filter(|dir| dir.is_absolute()).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_directory_too_long_for_a_socket_is_refused_by_name() {
        let daemon = Daemon {
            grpc_address: "/g".into(),
            ttrpc_address: "/t".into(),
            binary: "/bin/true".into(),
            version: "0".into(),
        };
        let mut config = Config::new("/state", "/root", daemon);
        assert!(config.check().is_ok());
        config.socket_dir = Some(format!("/{}", "x".repeat(41)).into());
        assert!(config.check().is_ok());
        config.socket_dir = Some(format!("/{}", "x".repeat(42)).into());
        assert!(config.check().unwrap_err().to_string().contains("42 bytes"));
        config.socket_dir = None;
        config.state = "relative".into();
        assert!(config.check().unwrap_err().to_string().contains("state directory"));
    }
}
