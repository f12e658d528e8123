//! What the daemon is told: flags, then a TOML file, then defaults. Everything is checked before
//! anything is made or bound.

use std::{
    env, fmt, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use runtime_v2::{Config, Daemon};
use serde::Deserialize;

/// Read if it is there and no other is named.
const DEFAULT_FILE: &str = "/etc/containerd-task-manager/config.toml";

/// The directory whose name tells that a containerd keeps its own bundles there.
const STOCK_DIR: &str = "io.containerd.runtime.v2.task";

/// The longest path of a Unix socket (`sun_path` less its end).
const MAX_SOCKET_PATH: usize = 107;

/// A setting as it is given, by flag or in the file; both have the same names.
#[derive(Debug, Default, Clone, clap::Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    /// Socket of the containerd behind [default: /run/containerd/containerd.sock]
    #[arg(long, value_name = "SOCKET")]
    containerd: Option<PathBuf>,
    /// Its ttrpc socket, where shims send events [default: that of --containerd with .ttrpc]
    #[arg(long, value_name = "SOCKET")]
    containerd_ttrpc: Option<PathBuf>,
    /// Its executable, which shims older than ttrpc run to publish events [default: from PATH]
    #[arg(long, value_name = "FILE")]
    containerd_binary: Option<PathBuf>,
    /// Socket to serve [default: /run/containerd-task-manager/containerd.sock]
    #[arg(long, value_name = "SOCKET")]
    address: Option<PathBuf>,
    /// Permissions of that socket, octal [default: 0600]
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
    /// Group of that socket, by number
    #[arg(long, value_name = "GID")]
    socket_gid: Option<u32>,
    /// Directory of bundles; emptied by a reboot [default: /run/containerd-task-manager/tasks]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Directory of what outlives a reboot [default: /var/lib/containerd-task-manager/tasks]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Directory for the sockets of shims [default: theirs]
    #[arg(long, value_name = "DIR")]
    shim_socket_dir: Option<PathBuf>,
    /// Have shims write debug logs
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    shim_debug: Option<bool>,
    /// Serve Prometheus metrics at this address, such as 127.0.0.1:9464 [default: none]
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<String>,
    /// What to log: error, warn, info, debug, trace, or a filter by module [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How to log: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people; coloured on a terminal.
    Text,
    /// One object per line.
    Json,
}

/// All that the daemon is told, checked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) containerd: PathBuf,
    pub(crate) containerd_ttrpc: PathBuf,
    pub(crate) containerd_binary: PathBuf,
    pub(crate) address: PathBuf,
    pub(crate) socket_mode: u32,
    pub(crate) socket_gid: Option<u32>,
    pub(crate) state: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) shim_socket_dir: Option<PathBuf>,
    pub(crate) shim_debug: bool,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
}

/// A setting that cannot work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no TOML, or has settings that there are not.
    #[error("{}", .path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot be used.
    #[error("{setting}: {why}")]
    Invalid {
        /// Its name.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// What the library would refuse.
    #[error(transparent)]
    Library(#[from] runtime_v2::Error),
}

fn invalid(setting: &'static str, why: impl fmt::Display) -> ConfigError {
    ConfigError::Invalid { setting, why: why.to_string() }
}

impl Settings {
    /// Puts flags, file and defaults together, and checks the outcome.
    ///
    /// # Errors
    /// Naming the setting that is wrong.
    pub(crate) fn new(flags: Given, file: Option<&Path>) -> Result<Self, ConfigError> {
        let settings = flags.or(from_file(file)?).resolve()?;
        settings.check()?;
        Ok(settings)
    }

    /// The surroundings as the library wants them.
    pub(crate) fn manager(&self) -> Config {
        let daemon = Daemon {
            grpc_address: self.address.display().to_string(),
            ttrpc_address: self.containerd_ttrpc.display().to_string(),
            binary: self.containerd_binary.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut config = Config::new(&self.state, &self.root, daemon);
        config.socket_dir.clone_from(&self.shim_socket_dir);
        config.debug = self.shim_debug;
        config
    }

    fn check(&self) -> Result<(), ConfigError> {
        let sockets = [
            ("containerd", &self.containerd),
            ("containerd-ttrpc", &self.containerd_ttrpc),
            ("address", &self.address),
        ];
        for (setting, path) in sockets {
            if !path.is_absolute() || path.as_os_str().len() > MAX_SOCKET_PATH {
                let why = "must be an absolute path of at most 107 bytes";
                return Err(invalid(setting, format!("{}: {why}", path.display())));
            }
        }
        if [&self.containerd, &self.containerd_ttrpc].contains(&&self.address) {
            return Err(invalid("address", "is containerd's own socket"));
        }
        for (setting, path) in [("state", &self.state), ("root", &self.root)] {
            refuse_stock(setting, path)?;
        }
        if self.state == self.root {
            return Err(invalid("root", "must be another directory than state"));
        }
        self.manager().check()?;
        Ok(())
    }
}

impl Given {
    /// These settings, and those of `other` where these say nothing.
    fn or(self, other: Self) -> Self {
        Self {
            containerd: self.containerd.or(other.containerd),
            containerd_ttrpc: self.containerd_ttrpc.or(other.containerd_ttrpc),
            containerd_binary: self.containerd_binary.or(other.containerd_binary),
            address: self.address.or(other.address),
            socket_mode: self.socket_mode.or(other.socket_mode),
            socket_gid: self.socket_gid.or(other.socket_gid),
            state: self.state.or(other.state),
            root: self.root.or(other.root),
            shim_socket_dir: self.shim_socket_dir.or(other.shim_socket_dir),
            shim_debug: self.shim_debug.or(other.shim_debug),
            metrics: self.metrics.or(other.metrics),
            log_level: self.log_level.or(other.log_level),
            log_format: self.log_format.or(other.log_format),
        }
    }

    fn resolve(self) -> Result<Settings, ConfigError> {
        let path = |given: Option<PathBuf>, default: &str| given.unwrap_or_else(|| default.into());
        let containerd = path(self.containerd, "/run/containerd/containerd.sock");
        let containerd_ttrpc = self.containerd_ttrpc.unwrap_or_else(|| {
            let mut name = containerd.clone().into_os_string();
            name.push(".ttrpc");
            name.into()
        });
        let socket_mode = self.socket_mode.map_or(Ok(0o600), |mode| {
            let parsed = u32::from_str_radix(&mode, 8).ok().filter(|bits| bits & !0o777 == 0);
            parsed.ok_or_else(|| invalid("socket-mode", format!("{mode:?} is not like 0660")))
        })?;
        let metrics = self.metrics.map(|text| {
            text.parse().map_err(|_| invalid("metrics", format!("{text:?} is not IP:PORT")))
        });
        let log_format = match self.log_format.as_deref() {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => {
                return Err(invalid("log-format", format!("{other:?} is neither text nor json")));
            }
        };
        Ok(Settings {
            containerd,
            containerd_ttrpc,
            containerd_binary: self.containerd_binary.unwrap_or_else(containerd_in_path),
            address: path(self.address, "/run/containerd-task-manager/containerd.sock"),
            socket_mode,
            socket_gid: self.socket_gid,
            state: path(self.state, "/run/containerd-task-manager/tasks"),
            root: path(self.root, "/var/lib/containerd-task-manager/tasks"),
            shim_socket_dir: self.shim_socket_dir,
            shim_debug: self.shim_debug.unwrap_or(false),
            metrics: metrics.transpose()?,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
            log_format,
        })
    }
}

/// The file that is named, or the default one if it is there.
fn from_file(named: Option<&Path>) -> Result<Given, ConfigError> {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
            return Ok(Given::default());
        }
        Err(source) => return Err(ConfigError::Unreadable { path: path.into(), source }),
    };
    toml::from_str(&text)
        .map_err(|source| ConfigError::Malformed { path: path.into(), source: Box::new(source) })
}

/// Refuses the directories of a containerd: it would take our bundles for its own, and remove
/// them or adopt their shims.
fn refuse_stock(setting: &'static str, path: &Path) -> Result<(), ConfigError> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let within = real.components().any(|part| part.as_os_str() == STOCK_DIR);
    if within || real.join(STOCK_DIR).exists() {
        let why = format!(
            "{} belongs to a containerd, which would adopt or wipe what is there",
            path.display()
        );
        return Err(invalid(setting, why));
    }
    Ok(())
}

fn containerd_in_path() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&path).map(|dir| dir.join("containerd"));
    candidates.find(|file| file.is_file()).unwrap_or_else(|| "containerd".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(toml: &str) -> Result<Settings, ConfigError> {
        let given: Given = toml::from_str(toml).unwrap();
        let settings = given.resolve()?;
        settings.check()?;
        Ok(settings)
    }

    #[test]
    fn defaults_can_work() {
        let settings = settings("").unwrap();
        assert_eq!(settings.socket_mode, 0o600);
        assert_eq!(settings.containerd_ttrpc, Path::new("/run/containerd/containerd.sock.ttrpc"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let file: Given = toml::from_str("address = '/file'\nroot = '/file-root'").unwrap();
        let flags = Given { address: Some("/flag".into()), ..Given::default() };
        let settings = flags.or(file).resolve().unwrap();
        assert_eq!(settings.address, Path::new("/flag"));
        assert_eq!(settings.root, Path::new("/file-root"));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (toml, name) in [
            ("address = 'relative'", "address"),
            ("address = '/run/containerd/containerd.sock'", "address"),
            ("socket_mode = '0999'", "socket-mode"),
            ("socket_mode = '7777'", "socket-mode"),
            ("state = '/run/containerd/io.containerd.runtime.v2.task'", "state"),
            ("root = '/x/io.containerd.runtime.v2.task/y'", "root"),
            ("state = '/same'\nroot = '/same'", "root"),
            ("state = 'relative'", "state"),
            ("metrics = 'localhost'", "metrics"),
            ("log_format = 'xml'", "log-format"),
            ("shim_socket_dir = '/far/too/long/for/the/name/of/a/socket/of/a/shim'", "socket"),
        ] {
            let error = settings(toml).unwrap_err().to_string();
            assert!(error.contains(name), "{toml}: {error}");
        }
        assert!(toml::from_str::<Given>("adress = '/typo'").is_err());
    }

    #[test]
    fn the_directory_above_a_containerds_bundles_is_refused_too() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(STOCK_DIR)).unwrap();
        let error = settings(&format!("state = '{}'", dir.path().display())).unwrap_err();
        assert!(error.to_string().contains("belongs to a containerd"), "{error}");
    }

    #[test]
    fn the_example_names_settings_that_there_are() {
        let example = include_str!("../../../dist/config.toml");
        let is_setting = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
        let all: Vec<&str> =
            example.lines().filter(is_setting).filter_map(|line| line.get(1..)).collect();
        let given: Given = toml::from_str(&all.join("\n")).unwrap();
        assert_eq!(all.len(), 13, "one line for each setting");
        given.resolve().unwrap().check().unwrap();
    }
}
