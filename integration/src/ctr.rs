//! containerd's own client, of any series, at any socket.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;

use crate::deadline;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::leak::MARKER;

/// `ctr` of one series at one socket, on the fixture's namespace.
#[derive(Debug, Clone)]
pub struct Ctr {
    binary: PathBuf,
    address: PathBuf,
    namespace: String,
    path: String,
}

impl Ctr {
    /// The client in a directory of binaries, for a socket.
    #[must_use]
    pub fn new(fixture: &Fixture, bin: &Path, address: &Path) -> Self {
        Self {
            binary: bin.join("ctr"),
            address: address.to_path_buf(),
            namespace: fixture.namespace().to_owned(),
            path: fixture.path(),
        }
    }

    /// The same client at another socket.
    #[must_use]
    pub fn at(&self, address: &Path) -> Self {
        Self { address: address.to_path_buf(), ..self.clone() }
    }

    /// A command, to be changed further and run.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("--address")
            .arg(&self.address)
            .args(["--namespace", &self.namespace])
            .args(arguments)
            .env("CONTAINERD_ADDRESS", &self.address)
            .env("PATH", &self.path)
            .env(MARKER, &self.namespace)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        deadline::ended(self.command(arguments)).await
    }

    /// Runs a command that has to succeed; gives what it prints.
    ///
    /// # Errors
    /// When it fails, with what it says.
    pub async fn must(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Failure::new(format!("ctr {}: {said}", arguments.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a command that has to fail; gives what it says.
    ///
    /// # Errors
    /// When it succeeds.
    pub async fn refused(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments).await?;
        if output.status.success() {
            return Err(Failure::new(format!("ctr {} succeeds", arguments.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Whether a command succeeds, without a word.
    pub async fn succeeds(&self, arguments: &[&str]) -> bool {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        deadline::ended(command).await.is_ok_and(|output| output.status.success())
    }

    /// Pid and status of a task, if it is listed.
    ///
    /// # Errors
    /// When the list cannot be had.
    pub async fn status_of(&self, id: &str) -> Result<Option<(u32, String)>> {
        let list = self.must(&["tasks", "ls"]).await?;
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
        Ok(line.and_then(|line| {
            let mut fields = line.split_whitespace().skip(1);
            Some((fields.next()?.parse().ok()?, fields.next()?.to_owned()))
        }))
    }
}
