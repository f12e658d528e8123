//! What the daemon is told: flags, then a TOML file, then defaults. Everything is checked before
//! anything is made or bound.

mod error;
mod given;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use runtime_v2::{Config, Daemon};

pub(crate) use error::ConfigError;
use error::invalid;
pub(crate) use given::Given;

/// Read if it is there and no other is named.
const DEFAULT_FILE: &str = "/etc/containerd-task-manager/config.toml";

/// The directory whose name tells that a containerd keeps its own bundles there.
const STOCK_DIR: &str = "io.containerd.runtime.v2.task";

/// The longest path of a Unix socket (`sun_path` less its end).
const MAX_SOCKET_PATH: usize = 107;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people; coloured on a terminal.
    Text,
    /// One object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("{other:?} is neither text nor json")),
        }
    }
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
        let flags: Given = toml::from_str("address = '/flag'").unwrap();
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
