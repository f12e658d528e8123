//! A private containerd of any series at hand: its own root, state, socket and `PATH`; nothing of the host's is touched.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::image;
use crate::leak::MARKER;
use crate::paths;

/// The series that are tested, oldest first.
pub const SERIES: [&str; 3] = ["1.6", "1.7", "2"];

/// A running daemon.
#[derive(Debug)]
pub struct Containerd<'a> {
    fixture: &'a Fixture,
    bin: PathBuf,
    dir: PathBuf,
    child: Child,
}

impl<'a> Containerd<'a> {
    /// Starts a daemon of a series, whose `PATH` begins with the fixture's programs, and waits until it serves.
    ///
    /// # Errors
    /// When there is none of this series, or it does not come up.
    pub async fn start(fixture: &'a Fixture, series: &str) -> Result<Self> {
        let bin = paths::containerd(series)
            .ok_or_else(|| Failure::new(format!("no containerd {series}: make deps")))?;
        let dir = fixture.file(&format!("c{series}"));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("config.toml"), config(&dir))?;
        // Bundles are the daemon's own business: it has removed all of them when nothing runs.
        let bundles = dir.join("state/io.containerd.runtime.v2.task").join(fixture.namespace());
        fixture.expect_empty(&bundles);
        let child = spawn(fixture, &bin, &dir)?;
        let daemon = Self { fixture, bin, dir, child };
        daemon.ready().await?;
        Ok(daemon)
    }

    /// The gRPC socket.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        address(&self.dir)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The directory of the fixture's bundles.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.dir.join("state/io.containerd.runtime.v2.task").join(self.fixture.namespace())
    }

    /// The daemon's own Go shim.
    #[must_use]
    pub fn go_shim(&self) -> PathBuf {
        self.bin.join("containerd-shim-runc-v2")
    }

    /// What it calls its version.
    ///
    /// # Errors
    /// When it does not say.
    pub async fn version(&self) -> Result<String> {
        let output = Command::new(self.bin.join("containerd")).arg("--version").output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().nth(2).map(str::to_owned);
        version.ok_or_else(|| Failure::new(format!("no version in {text:?}")))
    }

    /// A `ctr` command of this daemon's own version, on the fixture's namespace.
    #[must_use]
    pub fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.bin.join("ctr"));
        command
            .arg("--address")
            .arg(self.address())
            .args(["--namespace", self.fixture.namespace()])
            .args(arguments)
            .env("CONTAINERD_ADDRESS", self.address())
            .env("PATH", self.fixture.path())
            .env(MARKER, self.fixture.namespace())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `ctr` to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        let run = tokio::time::timeout(HANG, self.ctr(arguments).output()).await;
        let output = run.map_err(|_| Failure::new(format!("ctr {} hangs", arguments.join(" "))))?;
        output.context(format!("ctr {}", arguments.join(" ")))
    }

    /// Runs `ctr`, which has to succeed; gives what it prints.
    ///
    /// # Errors
    /// When it fails, with what it says and the end of the daemon's log.
    pub async fn must(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let call = arguments.join(" ");
            return Err(Failure::new(format!("ctr {call}: {said}\n{}", self.log_tail())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Imports the busybox image.
    ///
    /// # Errors
    /// When it cannot be made or imported.
    pub async fn import_image(&self) -> Result {
        let archive = self.fixture.file("image.tar");
        if !archive.exists() {
            image::write(&archive)?;
        }
        self.must(&["images", "import", &archive.display().to_string()]).await.map(drop)
    }

    /// An id for a container of this daemon, whose traces are then looked for.
    #[must_use]
    pub fn id(&self, name: &str) -> String {
        let id = self.fixture.id(name);
        self.fixture.expect_socket(&self.address(), &id);
        id
    }

    /// Ends the daemon as a service manager does.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(mut self) -> Result {
        self.signal(Signal::SIGTERM).await
    }

    /// Ends the daemon and starts it anew; containers run on meanwhile.
    ///
    /// # Errors
    /// When it does not end or does not come up.
    pub async fn restart(&mut self, signal: Signal) -> Result {
        self.end(signal).await?;
        self.start_again().await
    }

    /// Ends the daemon, to be started again.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn end(&mut self, signal: Signal) -> Result {
        self.signal(signal).await
    }

    /// Starts the daemon again after its end.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again(&mut self) -> Result {
        self.child = spawn(self.fixture, &self.bin, &self.dir)?;
        self.ready().await
    }

    /// The end of the daemon's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        const LINES: usize = 15;
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }

    async fn signal(&mut self, signal: Signal) -> Result {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid.try_into()?), signal)?;
        }
        let end = tokio::time::timeout(HANG, self.child.wait()).await;
        end.map_err(|_| Failure::new("containerd does not end"))??;
        Ok(())
    }

    async fn ready(&self) -> Result {
        /// Between two tries: the daemon takes a few hundred milliseconds.
        const LOOK: Duration = Duration::from_millis(40);
        let tries = async {
            loop {
                let quiet = self.ctr(&["version"]).stderr(Stdio::null()).output().await;
                if quiet.is_ok_and(|output| output.status.success()) {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(HANG, tries)
            .await
            .map_err(|_| Failure::new(format!("containerd is not up:\n{}", self.log_tail())))
    }
}

fn address(dir: &Path) -> PathBuf {
    dir.join("c.sock")
}

fn spawn(fixture: &Fixture, bin: &Path, dir: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut command = Command::new(bin.join("containerd"));
    command
        .arg("--config")
        .arg(dir.join("config.toml"))
        .current_dir(dir)
        .env_clear()
        // Its shims come from here, before any that is installed on the host.
        .env("PATH", format!("{}:{}", fixture.path(), bin.display()))
        .env("TMPDIR", fixture.file("tmp"))
        .env(MARKER, fixture.namespace())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().context("starting containerd")
}

/// Version 2 of the format is read by all series. What is turned off needs the network, other services, or a host's
/// directories.
fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
temp = "{dir}/temp"
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
]
[grpc]
address = "{dir}/c.sock"
[ttrpc]
address = "{dir}/c.sock.ttrpc"
[debug]
level = "info"
"#
    )
}
