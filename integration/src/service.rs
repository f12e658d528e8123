//! A program that runs for a whole test, such as a daemon: started, ended and started again, with its log in a file.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::leak::MARKER;

/// What is started, the same each time.
#[derive(Debug, Clone)]
pub struct Program {
    /// What failures call it.
    pub name: &'static str,
    /// The executable.
    pub binary: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where it works, and where its log goes.
    pub dir: PathBuf,
    /// Its whole environment, but for what every program of a fixture has.
    pub environment: Vec<(String, String)>,
}

/// A program that runs, or has run.
#[derive(Debug)]
pub struct Service {
    program: Program,
    child: Child,
}

impl Service {
    /// Starts it, marked as the fixture's.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(fixture: &Fixture, mut program: Program) -> Result<Self> {
        let everyone = [
            // Shims and OCI runtimes come from here, before any that is installed on the host.
            ("PATH", fixture.path()),
            ("TMPDIR", fixture.file("tmp").display().to_string()),
            (MARKER, fixture.namespace().to_owned()),
        ];
        let everyone = everyone.map(|(name, value)| (name.to_owned(), value));
        program.environment = everyone.into_iter().chain(program.environment).collect();
        let child = spawn(&program)?;
        Ok(Self { program, child })
    }

    /// Starts it again after its end.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start_again(&mut self) -> Result {
        self.child = spawn(&self.program)?;
        Ok(())
    }

    /// The process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it serves, which a probe tells.
    ///
    /// # Errors
    /// When it ends instead, or does not come up.
    pub async fn until(&mut self, serves: impl AsyncFnMut() -> bool) -> Result {
        /// Between two tries: daemons take some tens or hundreds of milliseconds.
        const LOOK: Duration = Duration::from_millis(20);
        self.until_seen(LOOK, serves).await
    }

    /// The same with a time of one's own between two probes.
    ///
    /// # Errors
    /// As [`Self::until`].
    pub async fn until_seen(
        &mut self,
        look: Duration,
        mut serves: impl AsyncFnMut() -> bool,
    ) -> Result {
        let name = self.program.name;
        let looks = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return Err(Failure::new(format!("{name} ends, {status}")));
                }
                if serves().await {
                    return Ok(());
                }
                tokio::time::sleep(look).await;
            }
        };
        let limited = tokio::time::timeout(HANG, looks).await;
        let outcome = limited.unwrap_or_else(|_| Err(Failure::new(format!("{name} is not up"))));
        outcome.map_err(|failure| self.tell(&failure))
    }

    /// Ends it by a signal; gives its exit code, if it had one.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn end(&mut self, signal: Signal) -> Result<Option<i32>> {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid.try_into()?), signal)?;
        }
        let end = tokio::time::timeout(HANG, self.child.wait()).await;
        let hangs = || Failure::new(format!("{} does not end", self.program.name));
        Ok(end.map_err(|_| self.tell(&hangs()))??.code())
    }

    /// A failure, with the end of the log.
    #[must_use]
    pub fn tell(&self, failure: &Failure) -> Failure {
        Failure::new(format!("{failure}\n{}", self.log_tail()))
    }

    /// Everything it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.program.dir.join("log")).unwrap_or_default()
    }

    /// The end of that.
    #[must_use]
    pub fn log_tail(&self) -> String {
        const LINES: usize = 25;
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }
}

fn spawn(program: &Program) -> Result<Child> {
    let log = File::options().create(true).append(true).open(program.dir.join("log"))?;
    let mut command = Command::new(&program.binary);
    command
        .args(&program.arguments)
        .current_dir(&program.dir)
        .env_clear()
        .envs(program.environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().context(format!("starting {}", program.name))
}
