//! Settings as they are given, by flags and in the file.

use std::{env, path::PathBuf};

use serde::Deserialize;

use super::{ConfigError, LogFormat, Settings, error::invalid};

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
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
        hide_possible_values = true
    )]
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

impl Given {
    /// These settings, and those of `other` where these say nothing.
    pub(super) fn or(self, other: Self) -> Self {
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

    /// With the defaults for what nobody says.
    pub(super) fn resolve(self) -> Result<Settings, ConfigError> {
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
        let log_format = self.log_format.as_deref().map_or(Ok(LogFormat::Text), str::parse);
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
            log_format: log_format.map_err(|why| invalid("log-format", why))?,
        })
    }
}

fn containerd_in_path() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&path).map(|dir| dir.join("containerd"));
    candidates.find(|file| file.is_file()).unwrap_or_else(|| "containerd".into())
}
