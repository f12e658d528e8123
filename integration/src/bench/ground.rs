//! What every case stands on: who is compared, how much is done, where progress is told, and how it all ends early.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::contender::{self, Contender, Runtime};
use super::effort::Effort;
use super::figure::Case;
use super::machine::Machine;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::leak::Item;
use crate::scenario::witnessed;
use crate::{hybrid, paths};

/// No case takes as long on any machine: it hangs.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// How long what a case has ended may take to be gone. Go's shims of some series leave something behind every time.
const SETTLE: Duration = Duration::from_secs(2);

/// Told when the user wants it to end.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Listens for SIGINT and SIGTERM from now on.
    ///
    /// # Errors
    /// When signals cannot be listened for.
    pub fn on_signals() -> Result<Self> {
        let (sender, receiver) = watch::channel(false);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // The thread ends with the program; until then it has nothing to do but to wait.
        std::thread::spawn(move || {
            runtime.block_on(async {
                let kinds = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
                if let (Ok(mut interrupt), Ok(mut terminate)) = kinds {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                    sender.send_replace(true);
                }
                std::future::pending::<()>().await;
            });
        });
        Ok(Self(receiver))
    }

    /// Returns when it is to end.
    async fn wanted(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// All that cases share.
#[derive(Debug)]
pub struct Bench {
    /// How much is done.
    pub effort: Effort,
    /// The shims, ours first.
    pub shims: Vec<Contender>,
    /// The OCI runtimes, runc first.
    pub runtimes: Vec<Runtime>,
    /// What a case does now.
    pub progress: Progress,
    /// Where all this is.
    pub machine: Machine,
    /// What contenders left behind, and in which case; it was removed.
    pub left: Mutex<Vec<(String, Item)>>,
    chosen: Vec<String>,
    stop: Stop,
}

impl Bench {
    /// Looks for everybody. Of the cases, those are run whose names contain one of the words; all without any.
    ///
    /// # Errors
    /// When the shim under test or runc is missing.
    pub fn new(effort: Effort, chosen: Vec<String>, stop: Stop) -> Result<Self> {
        raise_limit()?;
        let mut runtimes = vec![Runtime::at("runc", paths::runc()?)?];
        if let Ok(crun) = paths::crun() {
            hybrid::free_unified_hierarchy()?;
            runtimes.push(Runtime::at("crun", crun)?);
        }
        Ok(Self {
            effort,
            chosen,
            shims: contender::shims()?,
            runtimes,
            progress: Progress::new(),
            machine: Machine::this(),
            left: Mutex::default(),
            stop,
        })
    }

    /// Runs one case on ground of its own, which is put in order afterwards whatever happens.
    ///
    /// # Errors
    /// The case's own, or that it was interrupted.
    pub fn run(
        &self,
        name: &str,
        case: impl AsyncFnOnce(&Fixture) -> Result<Vec<Case>>,
    ) -> Result<Vec<Case>> {
        if !self.chosen.is_empty() && !self.chosen.iter().any(|word| name.contains(word)) {
            return Ok(Vec::new());
        }
        self.progress.begin(name);
        let (value, left) = witnessed(LONGEST, SETTLE, async |fixture| {
            let memory = Memory::at(&fixture.dir().join("state"))?;
            fs::create_dir_all(fixture.bundles())?;
            let done = tokio::select! {
                done = case(fixture) => done,
                () = self.stop.wanted() => Err(Failure::new("interrupted")),
            };
            memory.end();
            done
        })
        .map_err(|failure| failure.context(name))?;
        self.progress.end();
        let mut all = self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.extend(left.into_iter().map(|item| (name.to_owned(), item)));
        Ok(value)
    }

    /// The names of all shims.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.shims.iter().map(|shim| shim.name.clone()).collect()
    }

    /// The names of all shims behind that of a floor.
    #[must_use]
    pub fn names_over(&self, floor: &str) -> Vec<String> {
        let mut names = self.names();
        names.insert(0, floor.to_owned());
        names
    }

    /// The quickest runtime, for cases in which it does not matter.
    #[must_use]
    pub fn quickest(&self) -> Option<&Runtime> {
        self.runtimes.last()
    }
}

/// A file system in memory for the bundles, which are below /run on a node. On a disk, making a file can take longer than
/// all that a shim's start does, and nobody would see the difference that is to be measured.
#[derive(Debug)]
pub(super) struct Memory(PathBuf);

impl Memory {
    pub(super) fn at(place: &Path) -> Result<Self> {
        let data = Some("mode=0711");
        fs::create_dir_all(place)?;
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), data).context("mounting")?;
        Ok(Self(place.to_owned()))
    }

    /// What still has files open there is found as a leak.
    pub(super) fn end(self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Hundreds of shims have a connection and a log each.
fn raise_limit() -> Result {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// A line on stderr that says what is going on.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    is_terminal: bool,
    now: Mutex<(String, Instant)>,
}

impl Progress {
    fn new() -> Self {
        let start = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self { start, is_terminal, now: Mutex::new((String::new(), start)) }
    }

    fn begin(&self, name: &str) {
        *self.lock() = (name.to_owned(), Instant::now());
        self.say("");
    }

    /// Tells how far the case is.
    pub fn turn(&self, turn: usize, of: usize) {
        if self.is_terminal {
            self.say(&format!(": {turn} of {of}"));
        }
    }

    /// Tells something else of the case.
    pub fn step(&self, what: &str) {
        if self.is_terminal {
            self.say(&format!(": {what}"));
        }
    }

    fn end(&self) {
        let took = self.lock().1.elapsed();
        if self.is_terminal {
            self.say(&format!(": {:.1} s\n", took.as_secs_f64()));
        }
    }

    fn say(&self, more: &str) {
        let line = format!("{:>4} s  {}{more}", self.start.elapsed().as_secs(), self.lock().0);
        // Nobody may be looking any more.
        let _ = if self.is_terminal {
            write!(std::io::stderr(), "\r\x1b[K{line}")
        } else {
            writeln!(std::io::stderr(), "{line}")
        };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (String, Instant)> {
        self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
