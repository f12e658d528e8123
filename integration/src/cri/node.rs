//! A node: a private containerd with CRI, whose build can be exchanged under running pods.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::config;
use super::network::Network;
use super::tools::{self, Build};
use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::image::{self, Image};
use crate::leak::MARKER;
use crate::{met, paths};

/// The namespace that CRI's containers are in, on every node.
pub const NAMESPACE: &str = "k8s.io";

/// A running node.
#[derive(Debug)]
pub struct Node<'a> {
    fixture: &'a Fixture,
    dir: PathBuf,
    build: Build,
    child: Child,
    network: Network,
}

impl<'a> Node<'a> {
    /// Starts a node, waits until it serves CRI, and imports busybox and the image of pods' first containers.
    ///
    /// # Errors
    /// When something is missing or it does not come up.
    pub async fn start(fixture: &'a Fixture, build: Build) -> Result<Self> {
        let dir = fixture.file("n");
        fs::create_dir_all(&dir)?;
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let network = Network::make(&dir, fixture.namespace())?;
        // Nothing of a pod stays: no bundle, no runtime's state, no network namespace, no address.
        for place in ["state/io.containerd.runtime.v2.task/k8s.io", "runc/k8s.io"] {
            fixture.expect_empty(&dir.join(place));
        }
        fs::write(dir.join("crictl.yaml"), "")?;
        let child = spawn(fixture, build, &dir, &network)?;
        let mut node = Self { fixture, dir, build, child, network };
        node.ready().await?;
        met::note(&met::version(&build.dir()?).await?)?;
        node.import(&Image::busybox()).await?;
        let pause = Image::busybox().named(&[config::PAUSE]).running(&["tail", "-f", "/dev/null"]);
        node.import(&pause).await?;
        Ok(node)
    }

    /// What it runs.
    #[must_use]
    pub fn build(&self) -> Build {
        self.build
    }

    /// The daemon's pid.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The directory of everything that is the node's.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The socket of containerd, and of CRI.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// The socket as clients of CRI are told of it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.address().display())
    }

    /// The fixture it stands on.
    #[must_use]
    pub fn fixture(&self) -> &'a Fixture {
        self.fixture
    }

    /// The directory of the pods' bundles.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.dir.join("state/io.containerd.runtime.v2.task").join(NAMESPACE)
    }

    /// An id for a container that `ctr` makes in CRI's namespace, whose traces are then looked for.
    #[must_use]
    pub fn container_id(&self, name: &str) -> String {
        let id = self.fixture.id(name);
        self.fixture.expect_socket_in(&self.address(), NAMESPACE, &id);
        id
    }

    /// The task manager, which is a child of containerd's in our build.
    ///
    /// # Errors
    /// When there is none.
    pub fn manager(&self) -> Result<u32> {
        let containerd = self.pid().ok_or_else(|| Failure::new("containerd has ended"))?;
        let all = fs::read_dir(format!("/proc/{containerd}/task"))?.flatten();
        let children: Vec<String> = all
            .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
            .collect();
        let pids = children.iter().flat_map(|list| list.split_whitespace());
        let is_manager = |pid: &&str| {
            let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            name.contains("\0attach\0")
        };
        let found = pids.into_iter().find(is_manager).and_then(|pid| pid.parse().ok());
        found
            .ok_or_else(|| Failure::new(format!("no task manager below containerd ({children:?})")))
    }

    /// `crictl` with these arguments.
    ///
    /// # Errors
    /// When it is not built.
    pub fn crictl(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.command(&tools::crictl()?);
        command
            .arg("--config")
            .arg(self.dir.join("crictl.yaml"))
            .args(["--runtime-endpoint", &self.endpoint(), "--image-endpoint", &self.endpoint()])
            .args(["--timeout", "60s"])
            .args(arguments);
        Ok(command)
    }

    /// `ctr` of the build that runs.
    ///
    /// # Errors
    /// When it is missing.
    pub fn ctr(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.command(&self.build.dir()?.join("ctr"));
        command
            .arg("--address")
            .arg(self.address())
            .args(["--namespace", NAMESPACE])
            .args(arguments);
        Ok(command)
    }

    /// A client of the node, in its network.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.network.command(program);
        command
            .env("PATH", self.fixture.path())
            .env("TMPDIR", self.fixture.file("tmp"))
            .env(MARKER, self.fixture.namespace())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `crictl` to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        ended(self.crictl(arguments)?).await
    }

    /// Runs `crictl`, which has to succeed; gives what it prints, without the last line's end.
    ///
    /// # Errors
    /// When it fails, with what it says and the end of the daemon's log.
    pub async fn must(&self, arguments: &[&str]) -> Result<String> {
        self.succeeded("crictl", arguments, self.output(arguments).await?)
    }

    /// Runs `ctr`, which has to succeed; gives what it prints.
    ///
    /// # Errors
    /// As [`Self::must`].
    pub async fn must_ctr(&self, arguments: &[&str]) -> Result<String> {
        self.succeeded("ctr", arguments, ended(self.ctr(arguments)?).await?)
    }

    fn succeeded(&self, program: &str, arguments: &[&str], output: Output) -> Result<String> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let call = arguments.join(" ");
        Err(Failure::new(format!("{program} {call}: {said}\n{}", self.log_tail())))
    }

    /// Imports an image.
    ///
    /// # Errors
    /// When it cannot be made or imported.
    pub async fn import(&self, image: &Image) -> Result {
        let archive = self.dir.join("image.tar");
        image.write(&archive)?;
        self.must_ctr(&["images", "import", &archive.display().to_string()]).await?;
        Ok(fs::remove_file(&archive)?)
    }

    /// Stops the daemon as a service manager does, and starts another build of it on the same directories.
    ///
    /// # Errors
    /// When the one does not end or the other does not come up.
    pub async fn exchange(&mut self, build: Build) -> Result {
        self.end(Signal::SIGTERM).await?;
        self.build = build;
        self.start_again().await
    }

    /// Ends the daemon.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn end(&mut self, signal: Signal) -> Result {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid.try_into()?), signal)?;
        }
        let end = tokio::time::timeout(HANG, self.child.wait()).await;
        end.map_err(|_| Failure::new(format!("containerd does not end:\n{}", self.log_tail())))??;
        Ok(())
    }

    /// Starts the daemon after its end.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again(&mut self) -> Result {
        self.child = spawn(self.fixture, self.build, &self.dir, &self.network)?;
        self.ready().await
    }

    /// Stops the node.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(mut self) -> Result {
        self.end(Signal::SIGTERM).await
    }

    /// The end of the daemon's log, the task manager's lines among it.
    #[must_use]
    pub fn log_tail(&self) -> String {
        const LINES: usize = 25;
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }

    /// Ready is who can run pods: the network is configured, and CRI answers.
    async fn ready(&mut self) -> Result {
        let look = async {
            loop {
                if self.child.try_wait()?.is_some() {
                    return Err(Failure::new(format!("containerd ends:\n{}", self.log_tail())));
                }
                let asked =
                    self.output(&["info", "-o", "go-template", "--template", READY]).await?;
                if String::from_utf8_lossy(&asked.stdout).trim() == "truetrue" {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let limited = tokio::time::timeout(HANG, look).await;
        limited.map_err(|_| Failure::new(format!("CRI is not up:\n{}", self.log_tail())))?
    }
}

/// Both conditions of a node's status, one after the other.
const READY: &str = "{{range .status.conditions}}{{if or (eq .type \"RuntimeReady\") (eq .type \"NetworkReady\")}}\
                     {{.status}}{{end}}{{end}}";

fn spawn(fixture: &Fixture, build: Build, dir: &Path, network: &Network) -> Result<Child> {
    fs::write(dir.join("config.toml"), config::text(fixture, dir, build)?)?;
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut command = network.command(&build.dir()?.join("containerd"));
    command
        .arg("--config")
        .arg(dir.join("config.toml"))
        .current_dir(dir)
        .env_clear()
        .env("PATH", fixture.path())
        .env("TMPDIR", fixture.file("tmp"))
        .env(MARKER, fixture.namespace())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().context("starting containerd")
}

async fn ended(mut command: Command) -> Result<Output> {
    let run = tokio::time::timeout(HANG, command.output()).await;
    let output = run.map_err(|_| Failure::new(format!("{:?} hangs", command.as_std())))?;
    output.context(format!("{:?}", command.as_std()))
}

/// The image that containers are made of unless they say otherwise.
pub const IMAGE: &str = image::NAME;
