//! A private containerd of any series at hand: its own root, state, socket and `PATH`; nothing of the host's is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::Command;

use crate::ctr::Ctr;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::image;
use crate::service::{Program, Service};
use crate::{met, paths};

/// The series that are tested, oldest first.
pub const SERIES: [&str; 3] = ["1.6", "1.7", "2"];

/// The plugin that manages tasks, which also names its directories.
pub const TASK_PLUGIN: &str = "io.containerd.runtime.v2.task";

/// A running daemon.
#[derive(Debug)]
pub struct Containerd<'a> {
    fixture: &'a Fixture,
    bin: PathBuf,
    dir: PathBuf,
    ctr: Ctr,
    service: Service,
}

impl<'a> Containerd<'a> {
    /// Starts a daemon of a series, whose `PATH` begins with the fixture's programs, and waits until it serves.
    ///
    /// # Errors
    /// When there is none of this series, or it does not come up.
    pub async fn start(fixture: &'a Fixture, series: &str) -> Result<Self> {
        let bin = paths::containerd(series)
            .ok_or_else(|| Failure::new(format!("no containerd {series}: make deps")))?;
        // The one that is built here leaves its tasks to the manager.
        let without: &[&str] = if series == paths::BUILT { &[TASK_PLUGIN] } else { &[] };
        Self::start_at(fixture, bin, fixture.file(&format!("c{series}")), without).await
    }

    /// Starts the daemon of a directory of programs on directories of its own or an earlier one's, without some plugins.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_at(
        fixture: &'a Fixture,
        bin: PathBuf,
        dir: PathBuf,
        without: &[&str],
    ) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("config.toml"), config(&dir, without))?;
        // Bundles are the daemon's own business: it has removed all of them when nothing runs.
        let bundles = dir.join("state/io.containerd.runtime.v2.task").join(fixture.namespace());
        fixture.expect_empty(&bundles);
        let ctr = Ctr::new(fixture, &bin, &address(&dir));
        let service = Service::start(fixture, program(fixture, &bin, &dir))?;
        let mut daemon = Self { fixture, bin, dir, ctr, service };
        daemon.ready().await?;
        met::note(&daemon.version().await?)?;
        Ok(daemon)
    }

    /// Its directories, and its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The gRPC socket.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        address(&self.dir)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.service.pid()
    }

    /// The directory of the fixture's bundles.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.dir.join("state/io.containerd.runtime.v2.task").join(self.fixture.namespace())
    }

    /// The directory of this series' binaries.
    #[must_use]
    pub fn bin(&self) -> &Path {
        &self.bin
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
        met::version(&self.bin).await
    }

    /// The `ctr` of this daemon's own version.
    #[must_use]
    pub fn client(&self) -> &Ctr {
        &self.ctr
    }

    /// A `ctr` command of this daemon's own version, on the fixture's namespace.
    #[must_use]
    pub fn ctr(&self, arguments: &[&str]) -> Command {
        self.ctr.command(arguments)
    }

    /// Runs `ctr` to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        self.ctr.output(arguments).await
    }

    /// Runs `ctr`, which has to succeed; gives what it prints.
    ///
    /// # Errors
    /// When it fails, with what it says and the end of the daemon's log.
    pub async fn must(&self, arguments: &[&str]) -> Result<String> {
        self.ctr.must(arguments).await.map_err(|failure| self.service.tell(&failure))
    }

    /// Imports the busybox image.
    ///
    /// # Errors
    /// When it cannot be made or imported.
    pub async fn import_image(&self) -> Result {
        let archive = image::archive(self.fixture)?;
        self.must(&["images", "import", &archive]).await.map(drop)
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
        self.end(Signal::SIGTERM).await
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
        self.service.end(signal).await.map(drop)
    }

    /// Starts the daemon again after its end.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again(&mut self) -> Result {
        self.service.start_again()?;
        self.ready().await
    }

    /// The same for those who measure: it serves when this probe says so, which is asked every time after a while.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again_until(
        &mut self,
        look: Duration,
        serves: impl AsyncFnMut() -> bool,
    ) -> Result {
        self.service.start_again()?;
        self.service.until_seen(look, serves).await
    }

    /// The end of the daemon's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.service.log_tail()
    }

    async fn ready(&mut self) -> Result {
        let ctr = self.ctr.clone();
        self.service.until(async || ctr.succeeds(&["version"]).await).await
    }
}

fn address(dir: &Path) -> PathBuf {
    dir.join("c.sock")
}

fn program(fixture: &Fixture, bin: &Path, dir: &Path) -> Program {
    let path = format!("{}:{}", fixture.path(), bin.display());
    Program {
        name: "containerd",
        binary: bin.join("containerd"),
        arguments: vec!["--config".to_owned(), dir.join("config.toml").display().to_string()],
        dir: dir.to_path_buf(),
        environment: vec![("PATH".to_owned(), path)],
    }
}

/// Version 2 of the format is read by all series. What is turned off needs the network, other services, or a host's
/// directories.
fn config(dir: &Path, without: &[&str]) -> String {
    let dir = dir.display();
    let without: String = without.iter().map(|plugin| format!("\n  \"{plugin}\",")).collect();
    format!(
        r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
temp = "{dir}/temp"
disabled_plugins = [{without}
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
