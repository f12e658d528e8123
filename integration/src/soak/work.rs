//! The pieces of work: one container, one exec, one exec that leaves orphans behind; each of the kinds there are, in turn.

use std::fs;
use std::path::Path;

use super::Soak;
use crate::failure::{Context, Result};
use crate::shim::is_alive;
use crate::spec::Spec;
use crate::stdio::{Input, Stdio, collect};
use crate::{deadline, ensure, ensure_eq};

/// Kinds of containers.
pub(super) const CONTAINERS: usize = 6;
/// Kinds of execs.
pub(super) const EXECS: usize = 6;
/// Orphans of one exec.
pub(super) const ORPHANS: usize = 100;

const SIGKILL: u32 = 9;
const KILLED: u32 = 137;
const WORD: &[u8] = b"there and back\n";

impl Soak<'_> {
    /// A container from create to delete, of the kind that is next.
    pub(super) async fn one_container(&self, number: usize) -> Result {
        let name = self.name("c");
        match number % CONTAINERS {
            0 => self.container(&name, Spec::new(&["true"]), Stdio::null(), Plan::Ends(0)).await,
            1 => self.container(&name, Spec::shell("exit 7"), Stdio::null(), Plan::Ends(7)).await,
            2 => {
                let stdio = Stdio::terminal(&self.fixture.file("fifo"), &name)?;
                let spec = Spec::shell("read line; echo got $line").terminal();
                self.container(&name, spec, stdio, Plan::Answers).await
            }
            3 => {
                let stdio = self.fixture.fifos(&name)?;
                self.container(&name, Spec::new(&["cat"]), stdio, Plan::Echoes).await
            }
            4 => {
                let stdio = self.fixture.fifos(&name)?.without_stdin();
                self.container(&name, Spec::new(&["/no/such"]), stdio, Plan::Fails).await
            }
            _ => {
                self.container(&name, Spec::new(&["sleep", "1000"]), Stdio::null(), Plan::Killed)
                    .await
            }
        }
    }

    async fn container(&self, name: &str, spec: Spec, stdio: Stdio, plan: Plan) -> Result {
        let bundle = self.bundle(name, spec).await?;
        let (id, tasks) = (bundle.id.as_str(), &self.pod.shim.tasks);
        let client = Client::of(&stdio)?;
        let created = tasks.create_with(&bundle, &stdio, self.options()?).await;
        if plan == Plan::Fails {
            // Some runtimes look for the program at create, some at start.
            if created.is_ok() {
                ensure!(tasks.start(id, "").await.is_err(), "a missing program runs");
                tasks.delete(id, "").await?;
                self.one_ran();
            }
        } else {
            created.context("create")?;
            tasks.start(id, "").await.context("start")?;
            self.one_ran();
            self.follow(id, "", client, &stdio, plan).await?;
        }
        remove(&stdio);
        // The manager removes the bundle.
        Ok(fs::remove_dir_all(&bundle.dir)?)
    }

    /// An exec from its reservation to its delete, of the kind that is next.
    pub(super) async fn one_exec(&self, number: usize) -> Result {
        let name = self.name("e");
        match number % EXECS {
            0 => self.exec(&name, &["true"], Stdio::null(), Plan::Ends(0)).await,
            1 => self.exec(&name, &["sh", "-c", "exit 3"], Stdio::null(), Plan::Ends(3)).await,
            2 => {
                let stdio = Stdio::terminal(&self.fixture.file("fifo"), &name)?;
                let script = "read line; echo got $line";
                self.exec(&name, &["sh", "-c", script], stdio, Plan::Answers).await
            }
            3 => self.exec(&name, &["cat"], self.fixture.fifos(&name)?, Plan::Echoes).await,
            4 => {
                let stdio = self.fixture.fifos(&name)?.without_stdin();
                self.exec(&name, &["/no/such"], stdio, Plan::Fails).await
            }
            _ => self.exec(&name, &["sleep", "1000"], Stdio::null(), Plan::Killed).await,
        }
    }

    async fn exec(&self, name: &str, argv: &[&str], stdio: Stdio, plan: Plan) -> Result {
        let (id, tasks) = (self.pod.id(), &self.pod.shim.tasks);
        let client = Client::of(&stdio)?;
        let started = self.pod.exec_with(name, argv, &stdio).await;
        if plan == Plan::Fails {
            ensure!(started.is_err(), "a missing program runs");
            tasks.delete(id, name).await.context("delete")?;
        } else {
            started.context("start")?;
            self.one_ran();
            self.follow(id, name, client, &stdio, plan).await?;
        }
        remove(&stdio);
        Ok(())
    }

    /// What the client of a started process does until it has deleted it.
    async fn follow(
        &self,
        id: &str,
        exec: &str,
        client: Client,
        stdio: &Stdio,
        plan: Plan,
    ) -> Result {
        let tasks = &self.pod.shim.tasks;
        if matches!(plan, Plan::Answers | Plan::Echoes) {
            let mut input = Input::open(&stdio.stdin).await?;
            input.write(WORD).await?;
            if plan == Plan::Echoes {
                tasks.close_io(id, exec).await.context("close")?;
            }
        }
        if plan == Plan::Killed {
            tasks.kill(id, exec, SIGKILL).await.context("kill")?;
        }
        let status = tasks.wait(id, exec).await.context("wait")?.exit_status;
        let expected = match plan {
            Plan::Ends(status) => status,
            Plan::Killed => KILLED,
            _ => 0,
        };
        ensure_eq!(status, expected, "exit status");
        tasks.delete(id, exec).await.context("delete")?;
        let seen = client.output().await?;
        match plan {
            Plan::Echoes => ensure_eq!(seen, WORD, "output"),
            Plan::Answers => {
                let text = String::from_utf8_lossy(&seen).into_owned();
                ensure!(text.contains("got there and back"), "{text:?} on the terminal");
            }
            _ => ensure!(seen.is_empty(), "{seen:?} from nobody"),
        }
        Ok(())
    }

    /// An exec whose children outlive it.
    pub(super) async fn orphans(&self) -> Result {
        let script =
            format!("n=0; while [ $n -lt {ORPHANS} ]; do (usleep 20000 &); n=$((n+1)); done");
        self.exec(&self.name("o"), &["sh", "-c", &script], Stdio::null(), Plan::Ends(0)).await
    }

    /// The orphans of this pod do come to its shim: else nothing would be tested with them.
    pub(super) async fn orphans_come_to_the_shim(&self) -> Result {
        self.exec("o", &["sh", "-c", "(sleep 1000 &)"], Stdio::null(), Plan::Ends(0)).await?;
        let file = format!("/proc/{0}/task/{0}/children", self.pod.shim.pid);
        let children = fs::read_to_string(&file).context(file)?;
        let orphan = children
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u32>().ok())
            .find(|pid| *pid != self.pod.pid);
        let Some(orphan) = orphan else {
            return Err(crate::failure::Failure::new("no orphan comes to the shim"));
        };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(orphan)?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
        deadline::until("the end of an orphan", deadline::HANG, || !is_alive(orphan)).await
    }
}

/// How a process is going to end, and what its client does for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// By itself, with this status.
    Ends(u32),
    /// Having answered a line on its terminal.
    Answers,
    /// Having given back its input.
    Echoes,
    /// Killed.
    Killed,
    /// It cannot even start.
    Fails,
}

/// The reading ends of a process's streams.
struct Client {
    streams: Vec<crate::stdio::Collected>,
}

impl Client {
    fn of(stdio: &Stdio) -> Result<Self> {
        let paths = [&stdio.stdout, &stdio.stderr].into_iter().filter(|path| !path.is_empty());
        Ok(Self { streams: paths.map(|path| collect(path)).collect::<Result<_>>()? })
    }

    async fn output(self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        for stream in self.streams {
            all.extend(stream.bytes().await?);
        }
        Ok(all)
    }
}

/// The client removes its fifos.
fn remove(stdio: &Stdio) {
    for path in [&stdio.stdin, &stdio.stdout, &stdio.stderr] {
        if !path.is_empty() {
            let _ = fs::remove_file(Path::new(path));
        }
    }
}
