//! The task manager as a daemon, in front of a private containerd.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::containerd::Containerd;
use crate::deadline::{self, HANG};
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::leak::MARKER;
use crate::paths;

/// A running daemon.
#[derive(Debug)]
pub struct Daemon<'a> {
    fixture: &'a Fixture,
    ctr: PathBuf,
    behind: PathBuf,
    dir: PathBuf,
    metrics: SocketAddr,
    child: Child,
}

impl<'a> Daemon<'a> {
    /// Starts the daemon and waits until it serves.
    ///
    /// # Errors
    /// When it is not built or does not come up.
    pub async fn start(fixture: &'a Fixture, containerd: &Containerd<'_>) -> Result<Self> {
        let dir = fixture.file("m");
        fs::create_dir_all(&dir)?;
        let bin = containerd.go_shim();
        let ctr = bin.parent().unwrap_or(&bin).join("ctr");
        let behind = containerd.address();
        // All bundles and all that outlives a reboot are gone when nothing runs.
        for place in ["state", "root"] {
            fixture.expect_empty(&dir.join(place).join(fixture.namespace()));
        }
        // Free at this moment, which has to do: the daemon takes a number, not a socket.
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = spawn(fixture, &dir, &behind, metrics)?;
        let mut daemon = Self { fixture, ctr, behind, dir, metrics, child };
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
        self.child.id()
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

    /// A `ctr` command of the version of the containerd behind, through this daemon.
    #[must_use]
    pub fn ctr(&self, arguments: &[&str]) -> Command {
        self.ctr_at(&self.address(), arguments)
    }

    /// The same, past this daemon.
    #[must_use]
    pub fn ctr_behind(&self, arguments: &[&str]) -> Command {
        self.ctr_at(&self.behind, arguments)
    }

    fn ctr_at(&self, address: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.ctr);
        command
            .arg("--address")
            .arg(address)
            .args(["--namespace", self.fixture.namespace()])
            .args(arguments)
            .env("PATH", self.fixture.path())
            .env(MARKER, self.fixture.namespace())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs `ctr` through this daemon to its end.
    ///
    /// # Errors
    /// When it cannot be run or hangs.
    pub async fn output(&self, arguments: &[&str]) -> Result<Output> {
        output(self.ctr(arguments)).await
    }

    /// Runs `ctr` through this daemon, which has to succeed; gives what it prints.
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

    /// Runs `ctr` through this daemon, which has to fail; gives what it says.
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

    /// Starts a container that runs until it is killed.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn run_detached(&self, id: &str) -> Result<u32> {
        let command = ["sleep", "1000"];
        let run = ["run", "--detach", "--null-io", crate::image::NAME, id];
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
        let mut command = Command::new(paths::manager()?);
        command
            .args(arguments)
            .env("PATH", self.fixture.path())
            .env(MARKER, self.fixture.namespace())
            .kill_on_drop(true);
        output(command).await
    }

    /// The same, for one that succeeds and prints JSON.
    ///
    /// # Errors
    /// When it fails or prints something else.
    pub async fn tool_json(&self, arguments: &[&str]) -> Result<Value> {
        let output = self.tool(arguments).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).context(format!("{}: {said}", arguments.join(" ")))
    }

    /// The metrics page, fetched as Prometheus does.
    ///
    /// # Errors
    /// When it is not served.
    pub async fn metrics(&self) -> Result<String> {
        let fetch = async {
            let mut stream = TcpStream::connect(self.metrics).await?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: m\r\n\r\n").await?;
            let mut page = String::new();
            stream.read_to_string(&mut page).await?;
            Ok::<_, Failure>(page)
        };
        let limited = tokio::time::timeout(HANG, fetch).await;
        limited.map_err(|_| Failure::new("metrics are not served"))?
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
        Err(Failure::new(format!("the daemon ends with {code:?}\n{}", self.log_tail())))
    }

    /// Ends the daemon by a signal.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn signal(&mut self, signal: Signal) -> Result<Option<i32>> {
        if let Some(pid) = self.child.id() {
            kill(Pid::from_raw(pid.try_into()?), signal)?;
        }
        let end = tokio::time::timeout(HANG, self.child.wait()).await;
        Ok(end.map_err(|_| Failure::new("the daemon does not end"))??.code())
    }

    /// Starts the daemon again after its end.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_again(&mut self) -> Result {
        self.child = spawn(self.fixture, &self.dir, &self.behind, self.metrics)?;
        self.ready().await
    }

    /// The end of the daemon's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        const LINES: usize = 25;
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n")
    }

    async fn ready(&mut self) -> Result {
        let look = async {
            loop {
                if self.child.try_wait()?.is_some() {
                    return Err(Failure::new(format!("the daemon ends:\n{}", self.log_tail())));
                }
                let tried = self.ctr(&["tasks", "ls"]).stderr(Stdio::null()).output().await;
                if tried.is_ok_and(|output| output.status.success()) {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let limited = tokio::time::timeout(HANG, look).await;
        limited.map_err(|_| Failure::new("the daemon is not up"))?
    }
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

fn spawn(fixture: &Fixture, dir: &Path, behind: &Path, metrics: SocketAddr) -> Result<Child> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    let mut command = Command::new(paths::manager()?);
    command
        .args(arguments(dir, behind))
        .args(["--metrics", &metrics.to_string()])
        .current_dir(dir)
        .env_clear()
        // Shims and the OCI runtime come from here, before any that is installed on the host.
        .env("PATH", fixture.path())
        .env("TMPDIR", fixture.file("tmp"))
        .env(MARKER, fixture.namespace())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().context("starting the daemon")
}

async fn output(mut command: Command) -> Result<Output> {
    let run = tokio::time::timeout(HANG, command.output()).await;
    let output = run.map_err(|_| Failure::new(format!("{:?} hangs", command.as_std())))?;
    output.context(format!("{:?}", command.as_std()))
}

/// `ctr events` through a daemon, written to a file.
#[derive(Debug)]
pub struct Events {
    child: Child,
    file: PathBuf,
}

impl Events {
    /// Subscribes, and returns when events come in.
    ///
    /// # Errors
    /// When none come in.
    pub async fn follow(daemon: &Daemon<'_>) -> Result<Self> {
        let file = daemon.dir.join("events");
        let mut command = daemon.ctr(&["events"]);
        let child = command.stdout(File::create(&file)?).spawn()?;
        let events = Self { child, file };
        // Nobody says when the subscription stands; an event of our own does.
        let mark = format!("{}-mark", daemon.fixture.namespace());
        let seen = async {
            while events.lines_with(&mark).is_empty() {
                daemon.must(&["namespaces", "label", daemon.fixture.namespace(), &mark]).await.ok();
                let set = format!("x={mark}");
                daemon.must(&["namespaces", "label", daemon.fixture.namespace(), &set]).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<(), Failure>(())
        };
        let limited = tokio::time::timeout(HANG, seen).await;
        limited.map_err(|_| Failure::new("no events come in"))??;
        Ok(events)
    }

    /// Topics of the task events about an id, in the order they came.
    #[must_use]
    pub fn topics_of(&self, id: &str) -> Vec<String> {
        let lines = self.lines_with(&format!("\"{id}\""));
        let topic = |line: &String| {
            line.split_whitespace().find(|word| word.starts_with("/tasks/")).map(str::to_owned)
        };
        lines.iter().filter_map(topic).collect()
    }

    /// Lines that contain a text.
    #[must_use]
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        let all = fs::read_to_string(&self.file).unwrap_or_default();
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Waits until the last event of a task's life has come.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn until_deleted(&self, id: &str) -> Result {
        deadline::until("the delete event", HANG, || {
            self.topics_of(id).last().is_some_and(|topic| topic == "/tasks/delete")
        })
        .await
    }

    /// Ends the subscription.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(mut self) -> Result {
        self.child.kill().await.context("ending ctr events")
    }
}
