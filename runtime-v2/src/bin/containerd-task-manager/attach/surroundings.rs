//! What `Load` says about the surroundings, as the library wants it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use runtime_proto::{manager::LoadRequest, ttrpc::Status};
use runtime_v2::{Code, Config, Daemon, Timeouts};

use super::call::status;

/// What a containerd that comes back must not have changed: it is in the names and the environment
/// of the shims that run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Surroundings {
    state: PathBuf,
    root: PathBuf,
    grpc_address: String,
    ttrpc_address: String,
    socket_dir: Option<PathBuf>,
    shim_env: Vec<(String, String)>,
}

impl Surroundings {
    /// Reads them.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what is wrong.
    pub(super) fn of(request: &LoadRequest) -> Result<Self, Status> {
        for (name, value) in
            [("grpc_address", &request.grpc_address), ("ttrpc_address", &request.ttrpc_address)]
        {
            if !path(value).is_absolute() {
                let text = format!("{name} {value:?} is not the path of a socket");
                return Err(Code::InvalidArgument.status(&text));
            }
        }
        let shim_env = request.shim_env.iter().map(|entry| {
            let pair = entry.split_once('=').filter(|(key, _)| !key.is_empty());
            pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| {
                Code::InvalidArgument.status(&format!("shim_env: {entry:?} is not KEY=VALUE"))
            })
        });
        Ok(Self {
            state: PathBuf::from(&request.state),
            root: PathBuf::from(&request.root),
            grpc_address: request.grpc_address.clone(),
            ttrpc_address: request.ttrpc_address.clone(),
            socket_dir: Some(&request.socket_dir).filter(|dir| !dir.is_empty()).map(PathBuf::from),
            shim_env: shim_env.collect::<Result<_, _>>()?,
        })
    }

    /// containerd's socket.
    pub(super) fn containerd(&self) -> &Path {
        path(&self.grpc_address)
    }

    /// The state directory.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// All of it as the library's configuration.
    ///
    /// # Errors
    /// `InvalidArgument` for what cannot work.
    pub(super) fn config(&self, request: &LoadRequest) -> Result<Config, Status> {
        let binary = PathBuf::from(&request.containerd_binary);
        let beside = binary.parent().filter(|dir| dir.is_absolute()).map(Path::to_path_buf);
        let daemon = Daemon {
            grpc_address: self.grpc_address.clone(),
            ttrpc_address: self.ttrpc_address.clone(),
            binary,
            version: request.containerd_version.clone(),
        };
        let mut config = Config::new(&self.state, &self.root, daemon);
        config.env.clone_from(&self.shim_env);
        config.socket_dir.clone_from(&self.socket_dir);
        config.debug = request.debug;
        config.timeouts = timeouts(request);
        // As containerd does: behind PATH, shims lie beside its executable.
        config.search.extend(beside);
        config.check().map_err(|error| status(&error))?;
        if self.state == self.root {
            return Err(Code::InvalidArgument.status("state and root are the same directory"));
        }
        Ok(config)
    }
}

/// containerd's limits, where it names them and they are any; its own defaults are the library's.
fn timeouts(request: &LoadRequest) -> Timeouts {
    let Timeouts { load, cleanup, shutdown } = Timeouts::default();
    let named = |name: &str, default| {
        let nanos = request.timeouts.get(&format!("io.containerd.timeout.shim.{name}"));
        let nanos = nanos.and_then(|nanos| u64::try_from(*nanos).ok()).filter(|nanos| *nanos > 0);
        nanos.map_or(default, Duration::from_nanos)
    };
    Timeouts {
        load: named("load", load),
        cleanup: named("cleanup", cleanup),
        shutdown: named("shutdown", shutdown),
    }
}

/// A socket's address as a path.
fn path(address: &str) -> &Path {
    Path::new(address.strip_prefix("unix://").unwrap_or(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> LoadRequest {
        let mut request = LoadRequest::new();
        request.state = "/run/containerd/io.containerd.runtime.v2.task".into();
        request.root = "/var/lib/containerd/io.containerd.runtime.v2.task".into();
        request.grpc_address = "/run/containerd/containerd.sock".into();
        request.ttrpc_address = "/run/containerd/containerd.sock.ttrpc".into();
        request.containerd_binary = "/opt/bin/containerd".into();
        request.shim_env = vec!["A=b=c".into()];
        request.timeouts.insert("io.containerd.timeout.shim.load".into(), 7_000_000_000);
        request.timeouts.insert("io.containerd.timeout.shim.cleanup".into(), 0);
        request.timeouts.insert("io.containerd.timeout.nobody.knows".into(), 1);
        request
    }

    #[test]
    fn a_whole_request_becomes_a_configuration() {
        let request = request();
        let surroundings = Surroundings::of(&request).unwrap();
        let config = surroundings.config(&request).unwrap();
        assert_eq!(config.env, [("A".to_owned(), "b=c".to_owned())]);
        assert!(config.search.contains(&PathBuf::from("/opt/bin")));
        assert_eq!(config.socket_dir, None);
        let limits = Timeouts { load: Duration::from_secs(7), ..Timeouts::default() };
        assert_eq!(config.timeouts, limits);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        type Damage = fn(&mut LoadRequest);
        let broken: [(Damage, &str); 6] = [
            (|request| request.state = "relative".into(), "state"),
            (|request| request.root.clear(), "root"),
            (|request| request.root = request.state.clone(), "same directory"),
            (|request| request.grpc_address = "tcp://1.2.3.4".into(), "grpc_address"),
            (|request| request.ttrpc_address.clear(), "ttrpc_address"),
            (|request| request.shim_env = vec!["=x".into()], "shim_env"),
        ];
        for (damage, name) in broken {
            let mut request = request();
            damage(&mut request);
            let read = Surroundings::of(&request).and_then(|read| read.config(&request));
            let refused = read.unwrap_err();
            assert_eq!(refused.code.value(), Code::InvalidArgument.number(), "{name}");
            assert!(refused.message.contains(name), "{}", refused.message);
        }
    }
}
