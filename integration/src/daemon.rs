//! The task manager as a daemon, in front of a private containerd.

mod events;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::process::Command;

pub use events::Events;

use crate::containerd::Containerd;
use crate::ctr::Ctr;
use crate::deadline::{self, HANG};
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::image;
use crate::leak::MARKER;
use crate::scenario::{scenario, skip};
use crate::service::{Program, Service};
use crate::{metrics, paths};

/// A running daemon.
#[derive(Debug)]
pub struct Daemon<'a> {
    fixture: &'a Fixture,
    dir: PathBuf,
    ctr: Ctr,
    behind: Ctr,
    metrics: SocketAddr,
    service: Service,
}

/// What is out of the ordinary about a daemon.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// The directory with the `ctr` that calls it, if that is not of the containerd behind.
    pub clients: Option<PathBuf>,
    /// Arguments besides the usual ones.
    pub arguments: Vec<String>,
    /// Environment besides the usual one.
    pub environment: Vec<(String, String)>,
}

impl<'a> Daemon<'a> {
    /// Starts the daemon and waits until it serves.
    ///
    /// # Errors
    /// When it is not built or does not come up.
    pub async fn start(fixture: &'a Fixture, containerd: &Containerd<'_>) -> Result<Self> {
        Self::start_as(fixture, containerd, Manner::default()).await
    }

    /// The same, in a manner of one's own.
    ///
    /// # Errors
    /// When it is not built or does not come up.
    pub async fn start_as(
        fixture: &'a Fixture,
        containerd: &Containerd<'_>,
        manner: Manner,
    ) -> Result<Self> {
        let dir = fixture.file("m");
        fs::create_dir_all(&dir)?;
        let behind = Ctr::new(fixture, containerd.bin(), &containerd.address());
        let clients = manner.clients.as_deref().unwrap_or(containerd.bin());
        let ctr = Ctr::new(fixture, clients, &address(&dir));
        // All bundles and all that outlives a reboot are gone when nothing runs.
        for place in ["state", "root"] {
            fixture.expect_empty(&dir.join(place).join(fixture.namespace()));
        }
        let metrics = metrics::free_address()?;
        let mut words = arguments(&dir, &containerd.address());
        words.extend(["--metrics".to_owned(), metrics.to_string()]);
        words.extend(manner.arguments);
        let program = Program {
            name: "containerd-task-manager",
            binary: paths::manager()?,
            arguments: words,
            dir: dir.clone(),
            environment: manner.environment,
        };
        let service = Service::start(fixture, program)?;
        let mut daemon = Self { fixture, dir, ctr, behind, metrics, service };
        daemon.ready().await?;
        Ok(daemon)
    }

    /// The socket it serves.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        address(&self.dir)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.service.pid()
    }

    /// How many descriptors it has open.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let dir = PathBuf::from(format!("/proc/{}/fd", self.pid().unwrap_or_default()));
        paths::entries(&dir).count()
    }

    /// Waits until it has no more descriptors open than it had.
    ///
    /// # Errors
    /// When some stay open.
    pub async fn settles_to(&self, had: usize) -> Result {
        let settled = deadline::until("descriptors", HANG, || self.descriptors() <= had).await;
        let told = || format!("{} are open, {had} were", self.descriptors());
        settled.map_err(|failure| failure.context(told()))
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The directory of the fixture's bundles.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.state().join(self.fixture.namespace())
    }

    /// An id for a container, whose traces are then looked for.
    #[must_use]
    pub fn id(&self, name: &str) -> String {
        let id = self.fixture.id(name);
        self.fixture.expect_socket(&self.address(), &id);
        id
    }

    /// Its client.
    #[must_use]
    pub fn client(&self) -> &Ctr {
        &self.ctr
    }

    /// A client of the containerd behind, past this daemon.
    #[must_use]
    pub fn behind(&self) -> &Ctr {
        &self.behind
    }

    /// A `ctr` command through this daemon.
    #[must_use]
    pub fn ctr(&self, arguments: &[&str]) -> Command {
        self.ctr.command(arguments)
    }

    /// Runs `ctr` through this daemon to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        self.ctr.output(arguments).await
    }

    /// Runs `ctr` through this daemon, which has to succeed; gives what it prints.
    ///
    /// # Errors
    /// When it fails, with what it says and the end of the daemon's log.
    pub async fn must(&self, arguments: &[&str]) -> Result<String> {
        self.ctr.must(arguments).await.map_err(|failure| self.service.tell(&failure))
    }

    /// Runs `ctr` through this daemon, which has to fail; gives what it says.
    ///
    /// # Errors
    /// When it succeeds.
    pub async fn refused(&self, arguments: &[&str]) -> Result<String> {
        self.ctr.refused(arguments).await
    }

    /// Pid and status of a task, if it is listed.
    ///
    /// # Errors
    /// When the list cannot be had.
    pub async fn status_of(&self, id: &str) -> Result<Option<(u32, String)>> {
        self.ctr.status_of(id).await.map_err(|failure| self.service.tell(&failure))
    }

    /// Waits until a task has this status.
    ///
    /// # Errors
    /// When it does not come to have it.
    pub async fn until_status(&self, id: &str, status: &str) -> Result {
        let looks = async {
            while self.status_of(id).await?.is_none_or(|task| task.1 != status) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let limited = tokio::time::timeout(HANG, looks).await;
        limited.map_err(|_| Failure::new(format!("{id} does not become {status}")))?
    }

    /// Imports the busybox image through this daemon: leases, content, snapshots and diffs pass through.
    ///
    /// # Errors
    /// When it cannot be made or imported.
    pub async fn import_image(&self) -> Result {
        let archive = image::archive(self.fixture)?;
        self.must(&["images", "import", &archive]).await.map(drop)
    }

    /// Starts a container that runs until it is killed.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn run_detached(&self, id: &str) -> Result<u32> {
        let command = ["sleep", "1000"];
        let run = ["run", "--detach", "--null-io", image::NAME, id];
        self.must(&[&run[..], &command[..]].concat()).await?;
        let task = self.status_of(id).await?;
        task.map(|task| task.0).ok_or_else(|| Failure::new(format!("{id} is not listed")))
    }

    /// Kills and removes a container.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub async fn remove(&self, id: &str) -> Result {
        // ctr tells the status of the killed task by failing.
        self.output(&["tasks", "rm", "--force", id]).await?;
        self.must(&["containers", "rm", id]).await.map(drop)
    }

    /// Runs another command of the daemon's binary to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn tool(&self, arguments: &[&str]) -> Result<Output> {
        tool(self.fixture, arguments).await
    }

    /// The same, for one that succeeds and prints JSON.
    ///
    /// # Errors
    /// When it fails or prints something else.
    pub async fn tool_json(&self, arguments: &[&str]) -> Result<Value> {
        tool_json(self.fixture, arguments).await
    }

    /// The page of metrics, head and all.
    ///
    /// # Errors
    /// When it is not served.
    pub async fn metrics(&self) -> Result<String> {
        metrics::fetch(self.metrics).await
    }

    /// Ends the daemon as a service manager does; containers run on.
    ///
    /// # Errors
    /// When it does not end, or not well.
    pub async fn stop(mut self) -> Result {
        let code = self.signal(Signal::SIGTERM).await?;
        if code == Some(0) {
            return Ok(());
        }
        Err(self.service.tell(&Failure::new(format!("the daemon ends with {code:?}"))))
    }

    /// Ends the daemon by a signal.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn signal(&mut self, signal: Signal) -> Result<Option<i32>> {
        self.service.end(signal).await
    }

    /// Starts the daemon again after its end.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again(&mut self) -> Result {
        self.service.start_again()?;
        self.ready().await
    }

    /// The end of the daemon's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.service.log_tail()
    }

    /// The whole of it.
    #[must_use]
    pub fn log(&self) -> String {
        self.service.log()
    }

    async fn ready(&mut self) -> Result {
        let ctr = self.ctr.clone();
        self.service.until(async || ctr.succeeds(&["tasks", "ls"]).await).await
    }
}

/// Runs a command of the binary that needs no daemon to its end.
///
/// # Errors
/// When it cannot be run or hangs.
pub async fn tool(fixture: &Fixture, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(paths::manager()?);
    command
        .args(arguments)
        .env("PATH", fixture.path())
        .env(MARKER, fixture.namespace())
        .kill_on_drop(true);
    deadline::ended(command).await
}

/// The same, for one that prints JSON.
///
/// # Errors
/// When it prints something else.
pub async fn tool_json(fixture: &Fixture, arguments: &[&str]) -> Result<Value> {
    let output = tool(fixture, arguments).await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).context(format!("{}: {said}", arguments.join(" ")))
}

/// Runs a test on a daemon in front of a containerd of this series, both its own, with the shim under test.
///
/// # Errors
/// The test's failure, or what is left behind.
pub fn in_front_of<F>(series: &str, test: F) -> Result
where
    F: AsyncFnOnce(&Fixture, &mut Containerd<'_>, &mut Daemon<'_>) -> Result,
{
    if paths::containerd(series).is_none() {
        let built = "is not built: make containerd";
        let why = if series == paths::BUILT { built } else { "is not in this machine's mirror" };
        return skip(&format!("containerd {series} {why}"));
    }
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let mut containerd = Containerd::start(fixture, series).await?;
        containerd.import_image().await?;
        let mut daemon = Daemon::start(fixture, &containerd).await?;
        test(fixture, &mut containerd, &mut daemon).await?;
        daemon.stop().await?;
        containerd.stop().await
    })
}

/// Arguments that start another daemon on the same ground.
#[must_use]
pub fn arguments(dir: &Path, behind: &Path) -> Vec<String> {
    let flag = |name: &str, value: PathBuf| [name.to_owned(), value.display().to_string()];
    let flags = [
        flag("--containerd", behind.to_path_buf()),
        flag("--address", address(dir)),
        flag("--state", dir.join("state")),
        flag("--root", dir.join("root")),
        flag("--log-level", "debug".into()),
    ];
    ["serve".to_owned()].into_iter().chain(flags.into_iter().flatten()).collect()
}

fn address(dir: &Path) -> PathBuf {
    dir.join("m.sock")
}
