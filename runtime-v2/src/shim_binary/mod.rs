//! Running a shim's binary: `start`, `delete`, `-info` and `-v`.
//!
//! stdout is the answer and stderr is for people; they are kept apart, so that a warning does not
//! spoil an answer. The answer is complete when the process has ended: a shim that leaks its
//! stdout into the long-running process does not make the manager wait for that one's end.

mod era;
mod process;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{
    bootstrap::{
        Bootstrap, BootstrapParams, ENV_GRPC_ADDRESS, ENV_MAX_SHIM_VERSION, ENV_NAMESPACE,
        ENV_TTRPC_ADDRESS, Extension, LogLevel,
    },
    errdefs::Code,
    task::DeleteResponse,
    types::{Any, RuntimeInfo},
};

use era::Era;
pub(crate) use era::Eras;
use process::Run;

use crate::{
    config::Config,
    error::{Error, Result},
    id::Key,
};

/// `start` forks a process and binds a socket, in some 20 ms; on a node that swaps it has been
/// seen to take many seconds. One that takes longer hangs.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// `-info` runs the OCI runtime once, to learn its features.
const INFO_TIMEOUT: Duration = Duration::from_secs(10);

/// A shim binary and what it is told about its surroundings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShimBinary<'a> {
    /// The executable.
    pub(crate) path: &'a Path,
    /// The surroundings.
    pub(crate) config: &'a Config,
}

impl ShimBinary<'_> {
    /// Runs `start` in the bundle at `cwd`.
    ///
    /// # Errors
    /// When it fails, with its own words, or answers something unreadable. Then a process it has
    /// left behind is for the caller to find.
    pub(crate) async fn start(
        &self,
        eras: &Eras,
        key: &Key,
        cwd: &Path,
        options: Option<&Any>,
    ) -> Result<Bootstrap> {
        let era = eras.of(self.path).await;
        let mut run = self.run(key, cwd, "start", START_TIMEOUT);
        run.stdin = match era {
            Era::Params => self.params(key, options).write_to_bytes(),
            Era::Options => options.map_or(Ok(Vec::new()), Message::write_to_bytes),
        }
        .map_err(|error| Error::caused(Code::InvalidArgument, "encode start input", error))?;
        run.env.extend(self.config.env.iter().cloned());
        let answer = run.answer().await?;
        Bootstrap::decode(&answer).map_err(|error| {
            let context = format!("answer of {} start for {key}", self.path.display());
            Error::caused(Code::Unknown, context, error)
        })
    }

    /// Runs `delete` in the bundle at `cwd`: ends what is left of the container of a shim that
    /// can no longer do it.
    ///
    /// # Errors
    /// When it fails, with its own words.
    pub(crate) async fn delete(&self, key: &Key, cwd: &Path) -> Result<DeleteResponse> {
        let answer = self.run(key, cwd, "delete", self.config.timeouts.cleanup).answer().await?;
        DeleteResponse::parse_from_bytes(&answer).map_err(|error| {
            let context = format!("answer of {} delete for {key}", self.path.display());
            Error::caused(Code::Unknown, context, error)
        })
    }

    /// Runs `-info`.
    ///
    /// # Errors
    /// When it fails, with its own words; shims of containerd 1.x do not know it.
    pub(crate) async fn info(&self, options: Option<&Any>) -> Result<RuntimeInfo> {
        let mut run = Run::new(self.path, INFO_TIMEOUT);
        run.args.push("-info".into());
        if let Some(options) = options {
            run.stdin = options.write_to_bytes().map_err(|error| {
                Error::caused(Code::InvalidArgument, "encode runtime options", error)
            })?;
        }
        let answer = run.answer().await?;
        RuntimeInfo::parse_from_bytes(&answer).map_err(|error| {
            let context = format!("answer of {} -info", self.path.display());
            Error::caused(Code::Unknown, context, error)
        })
    }

    /// Command line, environment and working directory as containerd gives them
    /// (core/runtime/v2/shim.go and pkg/shim/util.go).
    fn run(&self, key: &Key, cwd: &Path, action: &str, limit: Duration) -> Run<'_> {
        let daemon = &self.config.daemon;
        let mut run = Run::new(self.path, limit);
        run.cwd = Some(cwd.to_path_buf());
        run.args = vec![
            "-namespace".into(),
            key.namespace.as_str().into(),
            "-address".into(),
            daemon.grpc_address.clone().into(),
            "-publish-binary".into(),
            daemon.binary.clone().into(),
            "-id".into(),
            key.id.as_str().into(),
        ];
        if action == "delete" {
            run.args.extend(["-bundle".into(), cwd.into()]);
        }
        if self.config.debug {
            run.args.push("-debug".into());
        }
        run.args.push(action.into());
        let env = [
            ("GOMAXPROCS", "2"),
            (ENV_MAX_SHIM_VERSION, "2"),
            (ENV_TTRPC_ADDRESS, &daemon.ttrpc_address),
            (ENV_GRPC_ADDRESS, &daemon.grpc_address),
            (ENV_NAMESPACE, key.namespace.as_str()),
        ];
        run.env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        run
    }

    fn params(&self, key: &Key, options: Option<&Any>) -> BootstrapParams {
        let daemon = &self.config.daemon;
        let mut params = BootstrapParams::new();
        params.instance_id = key.id.to_string();
        params.namespace = key.namespace.to_string();
        let level =
            if self.config.debug { LogLevel::LOG_LEVEL_DEBUG } else { LogLevel::LOG_LEVEL_INFO };
        params.log_level = level.into();
        params.containerd_version.clone_from(&daemon.version);
        params.containerd_ttrpc_address.clone_from(&daemon.ttrpc_address);
        params.containerd_grpc_address.clone_from(&daemon.grpc_address);
        params.containerd_binary = daemon.binary.display().to_string();
        if let Some(options) = options {
            let mut extension = Extension::new();
            extension.value = Some(options.clone()).into();
            params.extensions.push(extension);
        }
        params.socket_dir =
            self.config.socket_dir.as_ref().map(|dir: &PathBuf| dir.display().to_string());
        params
    }
}
