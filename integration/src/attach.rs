//! `containerd-task-manager attach`, and what a containerd build's plugin does with it: starts it, tells it its
//! surroundings, calls it.

mod glue;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::leak::MARKER;
use crate::{metrics, paths};

pub use glue::{Glue, Surroundings, code_of, create_request, own_request};

/// A manager that waits for a containerd, or has one.
#[derive(Debug)]
pub struct Attach<'a> {
    fixture: &'a Fixture,
    address: PathBuf,
    log: PathBuf,
    metrics: SocketAddr,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl<'a> Attach<'a> {
    /// Starts one as the plugin does, and waits until it says that it is ready.
    ///
    /// # Errors
    /// When it is not built, or is not ready.
    pub async fn start(fixture: &'a Fixture) -> Result<Self> {
        Self::start_at(fixture, "attach").await
    }

    /// The same at a socket of another name.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_at(fixture: &'a Fixture, name: &str) -> Result<Self> {
        let address = fixture.file(&format!("{name}.sock"));
        let log = fixture.file(&format!("{name}.log"));
        let metrics = metrics::free_address()?;
        let mut child = command(fixture, &address, &log)?
            .args(["--metrics", &metrics.to_string()])
            .spawn()
            .context("starting attach")?;
        let stdin = child.stdin.take();
        let mut attach = Self { fixture, address, log, metrics, child, stdin };
        attach.ready().await?;
        Ok(attach)
    }

    /// Starts one and loads, for tests that need no containerd: the fixture's directories are its surroundings.
    ///
    /// # Errors
    /// When the load fails.
    pub async fn alone(fixture: &'a Fixture) -> Result<(Self, Glue)> {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let surroundings = Surroundings::at(fixture.dir(), &fixture.address());
        fixture.expect_empty(&surroundings.bundles(fixture.namespace()));
        let attach = Self::start(fixture).await?;
        let glue = attach.glue().await?;
        glue.load(&surroundings).await?;
        Ok((attach, glue))
    }

    /// A connection on behalf of the fixture's namespace.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn glue(&self) -> Result<Glue> {
        Glue::connect(&self.address, self.fixture.namespace()).await
    }

    /// The socket.
    #[must_use]
    pub fn address(&self) -> &PathBuf {
        &self.address
    }

    /// The page of metrics, head and all. It is served from the first load on.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub async fn metrics(&self) -> Result<String> {
        metrics::fetch(self.metrics).await
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Closes its standard input, as the end of containerd does, and waits for its end.
    ///
    /// # Errors
    /// When it does not end well.
    pub async fn stop(mut self) -> Result {
        drop(self.stdin.take());
        let code = self.ended().await?;
        if code == Some(0) && !self.address.exists() {
            return Ok(());
        }
        Err(Failure::new(format!("attach ends with {code:?}\n{}", self.log_tail())))
    }

    /// Ends it by a signal.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn signal(mut self, signal: Signal) -> Result<Option<i32>> {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid.try_into()?), signal)?;
        }
        self.ended().await
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        const LINES: usize = 25;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }

    async fn ended(&mut self) -> Result<Option<i32>> {
        let end = tokio::time::timeout(HANG, self.child.wait()).await;
        Ok(end.map_err(|_| Failure::new("attach does not end"))??.code())
    }

    async fn ready(&mut self) -> Result {
        let mut stdout =
            self.child.stdout.take().ok_or_else(|| Failure::new("attach has no output"))?;
        let mut said = String::new();
        // To its end: the manager closes it when it has said this.
        let reading = tokio::time::timeout(HANG, stdout.read_to_string(&mut said)).await;
        reading.map_err(|_| Failure::new(format!("not ready:\n{}", self.log_tail())))??;
        if said == "ready\n" {
            return Ok(());
        }
        Err(Failure::new(format!("attach says {said:?}\n{}", self.log_tail())))
    }
}

/// The command by which the plugin starts one.
///
/// # Errors
/// When it is not built.
pub fn command(fixture: &Fixture, address: &PathBuf, log: &PathBuf) -> Result<Command> {
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(paths::manager()?);
    command
        .args(["attach", "--until-eof", "--log-level", "debug", "--address"])
        .arg(address)
        .current_dir(fixture.dir())
        .env_clear()
        .env("PATH", fixture.path())
        .env("TMPDIR", fixture.file("tmp"))
        .env(MARKER, fixture.namespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true);
    Ok(command)
}
