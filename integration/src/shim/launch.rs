//! A run of the shim binary: flags, environment and stdin in the manner of each containerd series.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio as ProcessStdio};

use containerd_shim_protos::bootstrap_api::{BootstrapParams, Extension};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::{Shim, Started};
use crate::bundle::Bundle;
use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::leak::MARKER;
use crate::paths;

/// Which containerd's manner to start a shim in: flags, environment and stdin changed over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 1.6: options on stdin, a plain address back.
    V1_6,
    /// 1.7: more environment.
    V1_7,
    /// 2.0 to 2.2: JSON back.
    V2_0,
    /// 2.3 and later: a protobuf message on stdin and back.
    V2_3,
}

/// All of them, oldest first.
pub const ERAS: [Era; 4] = [Era::V1_6, Era::V1_7, Era::V2_0, Era::V2_3];

/// A run of the shim binary in the making.
#[derive(Debug)]
pub struct Launch<'a> {
    fixture: &'a Fixture,
    bundle: &'a Bundle,
    binary: Option<PathBuf>,
    era: Era,
    debug: bool,
    options: Option<Any>,
    socket_dir: Option<PathBuf>,
    daemon: Option<PathBuf>,
    env: Vec<(String, String)>,
}

/// How a run of the shim binary ended.
#[derive(Debug)]
pub struct Ran {
    /// The exit status.
    pub status: ExitStatus,
    /// What it answered.
    pub stdout: Vec<u8>,
    /// What it complained about.
    pub stderr: String,
}

impl<'a> Launch<'a> {
    /// A launch of the shim under test for a bundle, in the manner of 1.7.
    #[must_use]
    pub fn new(fixture: &'a Fixture, bundle: &'a Bundle) -> Self {
        Self {
            fixture,
            bundle,
            binary: None,
            era: Era::V1_7,
            debug: false,
            options: None,
            socket_dir: None,
            daemon: None,
            env: Vec::new(),
        }
    }

    /// In the manner of another series.
    #[must_use]
    pub fn era(mut self, era: Era) -> Self {
        self.era = era;
        self
    }

    /// With another binary.
    #[must_use]
    pub fn binary(mut self, binary: PathBuf) -> Self {
        self.binary = Some(binary);
        self
    }

    /// With `-debug`.
    #[must_use]
    pub fn debug(mut self) -> Self {
        self.debug = true;
        self
    }

    /// With runtime options for `start`.
    #[must_use]
    pub fn options(mut self, options: Any) -> Self {
        self.options = Some(options);
        self
    }

    /// With a socket directory, which 2.3 and later can ask for.
    #[must_use]
    pub fn socket_dir(mut self, dir: PathBuf) -> Self {
        self.socket_dir = Some(dir);
        self
    }

    /// For the containerd at this gRPC socket, which also gets the events.
    #[must_use]
    pub fn daemon(mut self, address: PathBuf) -> Self {
        self.daemon = Some(address);
        self
    }

    /// With an environment variable of one's own, or another value for one that is set anyway.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The arguments before the action, in the order of the manager.
    #[must_use]
    pub fn flags(&self, action: &str) -> Vec<String> {
        let mut flags: Vec<String> =
            ["-namespace", self.fixture.namespace(), "-address"].map(str::to_owned).to_vec();
        flags.push(self.grpc_address());
        flags.extend(
            ["-publish-binary", "/usr/bin/containerd", "-id", &self.bundle.id].map(str::to_owned),
        );
        if action == "delete" || self.era == Era::V2_3 {
            flags.extend(["-bundle".to_owned(), self.bundle.path()]);
        }
        if self.debug {
            flags.push("-debug".to_owned());
        }
        flags
    }

    fn grpc_address(&self) -> String {
        let address = self.daemon.clone().unwrap_or_else(|| self.fixture.address());
        address.display().to_string()
    }

    fn events_address(&self) -> String {
        format!("{}.ttrpc", self.grpc_address())
    }

    /// What the manager writes on `start`'s stdin.
    #[must_use]
    pub fn stdin(&self) -> Vec<u8> {
        let message: &dyn EncodedMessage = match (self.era, &self.options) {
            (Era::V2_3, _) => &self.bootstrap_params(),
            (_, Some(options)) => options,
            (_, None) => return Vec::new(),
        };
        message.encoded()
    }

    /// 2.3's message on `start`'s stdin.
    #[must_use]
    pub fn bootstrap_params(&self) -> BootstrapParams {
        let mut params = BootstrapParams::new();
        params.instance_id.clone_from(&self.bundle.id);
        params.namespace = self.fixture.namespace().to_owned();
        params.containerd_version = "2.3.4".to_owned();
        params.containerd_ttrpc_address = self.events_address();
        params.containerd_grpc_address = self.grpc_address();
        params.containerd_binary = "/usr/bin/containerd".to_owned();
        params.socket_dir = self.socket_dir.as_ref().map(|dir| dir.display().to_string());
        if let Some(options) = &self.options {
            let mut extension = Extension::new();
            extension.value = MessageField::some(options.clone());
            params.extensions.push(extension);
        }
        params
    }

    /// The command for an action, with flags, environment and directory set; stdio is the caller's.
    ///
    /// # Errors
    /// When there is no binary.
    pub fn command(&self, action: &str) -> Result<Command> {
        let binary = self.binary.clone().map_or_else(paths::shim, Ok)?;
        let mut command = Command::new(binary);
        let path = |path: PathBuf| path.display().to_string();
        command
            .args(self.flags(action))
            .arg(action)
            .current_dir(&self.bundle.dir)
            .process_group(0)
            .env_clear()
            .env("PATH", self.fixture.path())
            .env("TMPDIR", path(self.fixture.file("tmp")))
            .env(MARKER, self.fixture.namespace())
            .env("GOMAXPROCS", "2")
            .env("TTRPC_ADDRESS", self.events_address());
        if self.era != Era::V1_6 {
            command
                .env("GRPC_ADDRESS", self.grpc_address())
                .env("NAMESPACE", self.fixture.namespace())
                .env("MAX_SHIM_VERSION", "2");
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Runs an action to the end of its output, as the manager does: it waits until nobody holds the pipe any more.
    ///
    /// # Errors
    /// When the binary cannot be run or its output has no end.
    pub async fn run(&self, action: &str) -> Result<Ran> {
        let stdin = if action == "start" { self.stdin() } else { Vec::new() };
        run(self.command(action)?, &stdin).await
    }

    /// Starts a shim and connects to it.
    ///
    /// # Errors
    /// When it does not start, or writes anything but its answer, or does not listen.
    pub async fn start(self) -> Result<Shim> {
        let ran = self.run("start").await?;
        if !ran.status.success() {
            return Err(Failure::new(format!("start: {}: {}", ran.status, ran.stderr)));
        }
        if !ran.stderr.is_empty() {
            return Err(Failure::new(format!("start succeeds but says {:?}", ran.stderr)));
        }
        let started = Started::read(&ran.stdout)?;
        Shim::connect(self.fixture, started).await
    }
}

/// Runs a command with bytes on its stdin, to the end of its output.
///
/// # Errors
/// When it cannot be run or its output has no end.
pub async fn run(mut command: Command, stdin: &[u8]) -> Result<Ran> {
    // The manager gives /dev/null when it has nothing to say.
    let input = if stdin.is_empty() { ProcessStdio::null() } else { ProcessStdio::piped() };
    command.stdin(input).stdout(ProcessStdio::piped()).stderr(ProcessStdio::piped());
    let mut child = command.spawn().context("starting the shim binary")?;
    let pipe = child.stdin.take();
    let feed = async {
        if let Some(mut pipe) = pipe {
            // A reader that has had enough may close early: what it answers is looked at instead.
            let _ = pipe.write_all(stdin).await;
        }
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(HANG, both).await;
    let output = output.map_err(|_| Failure::new("the shim binary's output has no end"))??;
    Ok(Ran {
        status: output.status,
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

trait EncodedMessage {
    fn encoded(&self) -> Vec<u8>;
}

impl<M: Message> EncodedMessage for M {
    fn encoded(&self) -> Vec<u8> {
        self.write_to_bytes().unwrap_or_default()
    }
}
