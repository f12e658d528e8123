//! A node: directories that stay, and whoever plays containerd on them today.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::disk::SmallDisk;
use super::glue::Glue;
use super::mishap::Mishap;
use super::player::Player;
use super::story::Story;
use crate::containerd::{Containerd, TASK_PLUGIN};
use crate::failure::{Context, Failure, Result};
use crate::fakerunc::FakeRunc;
use crate::fixture::Fixture;
use crate::paths;
use crate::shim::is_alive;
use crate::{ensure, ensure_eq};

/// Pids from here on are those of a stand-in's tasks, which are no processes.
const NO_PROCESS: u32 = 0x4000_0000;

/// A container that is to be run.
#[derive(Debug, Clone)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// The sandbox that it belongs to: its own id, if it is the pause container of one.
    pub sandbox: Option<String>,
    /// Whether that sandbox is on containerd's records, as CRI's are, or only in an annotation.
    pub on_record: bool,
    /// Name or path of its runtime.
    pub runtime: String,
    /// What it runs.
    pub command: Vec<String>,
}

/// The status of a task, in ctr's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Not started yet.
    Created,
    /// Running.
    Running,
    /// Frozen.
    Paused,
    /// Ended, not deleted.
    Stopped,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_uppercase())
    }
}

/// What the node has been told to run, as it has to be found at any moment.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub(super) container: Container,
    pub(super) pid: u32,
    pub(super) shim: u32,
    pub(super) status: Status,
    /// Live execs: id and pid.
    pub(super) execs: Vec<(String, u32)>,
}

/// The player at work.
#[derive(Debug)]
pub(super) enum Playing<'a> {
    Whole(Containerd<'a>),
    Ours { behind: Containerd<'a>, glue: Option<Box<Glue<'a>>> },
}

/// A node.
#[derive(Debug)]
pub struct Node<'a> {
    pub(super) fixture: &'a Fixture,
    pub(super) story: &'a Story,
    pub(super) dir: PathBuf,
    pub(super) player: Player,
    pub(super) playing: Option<Playing<'a>>,
    pub(super) kept: BTreeMap<String, Kept>,
    pub(super) mishap: Mishap,
    pub(super) runc: FakeRunc,
    pub(super) disk: Option<SmallDisk>,
    /// Whether our manager was started on that disk in a bad state.
    pub(super) spoilt: bool,
    pub(super) swaps: usize,
    imported: bool,
}

impl<'a> Node<'a> {
    /// A node that nothing runs on yet. `mishap` happens at every step from here on.
    ///
    /// # Errors
    /// When its ground cannot be laid.
    pub fn new(fixture: &'a Fixture, story: &'a Story, mishap: Mishap) -> Result<Self> {
        let dir = fixture.file("n");
        fs::create_dir_all(&dir)?;
        let runc = offer_scripted_runc(fixture)?;
        // The build finds the manager as it finds shims.
        fixture.offer("containerd-task-manager", &paths::manager()?)?;
        for half in ["state", "root"] {
            fixture.expect_empty(&dir.join(half).join(TASK_PLUGIN).join(fixture.namespace()));
        }
        let small = matches!(mishap, Mishap::FullDisk | Mishap::ReadOnlyDisk);
        let disk = small.then(|| SmallDisk::mount(&dir.join("state"))).transpose()?;
        Ok(Self {
            fixture,
            story,
            dir,
            player: Player::Ours,
            playing: None,
            kept: BTreeMap::new(),
            mishap,
            runc,
            disk,
            spoilt: false,
            swaps: 0,
            imported: false,
        })
    }

    /// Whose ground it stands on.
    #[must_use]
    pub fn fixture(&self) -> &'a Fixture {
        self.fixture
    }

    /// Who plays.
    #[must_use]
    pub fn player(&self) -> Player {
        self.player
    }

    /// Starts a player, which has to find everything that runs.
    ///
    /// # Errors
    /// When it does not come up, or has lost something.
    pub async fn boot(&mut self, player: Player) -> Result {
        self.boot_unchecked(player).await?;
        if self.spoilt {
            self.all_found().await.context(format!("after the start of {player} on a bad disk"))?;
            self.story.aside("all is found on such a disk; once more on a good one");
            self.kill_manager().await?;
            self.start_manager().await?;
        }
        self.check().await.context(format!("after the start of {player}"))
    }

    /// Starts a player, whatever it makes of what runs.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn boot_unchecked(&mut self, player: Player) -> Result {
        let missing = || Failure::new(player.missing().unwrap_or_default());
        let programs = player.programs().ok_or_else(missing)?;
        let dir = self.dir.clone();
        self.player = player;
        let without: &[&str] = if player == Player::Ours { &[TASK_PLUGIN] } else { &[] };
        let spoilt = if player == Player::Build { self.spoil_disk()? } else { None };
        self.spoilt = spoilt.is_some();
        let containerd = Containerd::start_at(self.fixture, programs, dir, without).await?;
        drop(spoilt);
        if !self.imported {
            containerd.import_image().await?;
            self.imported = true;
        }
        self.playing = Some(match player {
            Player::Ours => {
                let spoilt = self.spoil_disk()?;
                self.spoilt = spoilt.is_some();
                let glue = self.attach(&containerd).await?;
                drop(spoilt);
                Playing::Ours { behind: containerd, glue: Some(Box::new(glue)) }
            }
            Player::Stock(_) | Player::Build => Playing::Whole(containerd),
        });
        Ok(())
    }

    /// Ends the player; containers run on.
    ///
    /// # Errors
    /// When it does not end, or a container has.
    pub async fn end(&mut self, signal: Signal) -> Result {
        match self.playing.take() {
            Some(Playing::Whole(mut containerd)) => containerd.end(signal).await?,
            Some(Playing::Ours { mut behind, glue }) => {
                match glue {
                    Some(glue) if signal == Signal::SIGKILL => glue.kill().await?,
                    Some(glue) => glue.stop().await?,
                    None => {}
                }
                behind.end(signal).await?;
            }
            None => {}
        }
        let live = |kept: &&Kept| kept.status != Status::Stopped && kept.pid < NO_PROCESS;
        for kept in self.kept.values().filter(live) {
            ensure!(is_alive(kept.pid), "{} ends with {}", kept.container.id, self.player);
        }
        Ok(())
    }

    /// Another player, or the same again, takes over from the one that is ended in good order.
    ///
    /// # Errors
    /// When something is lost on the way.
    pub async fn switch(&mut self, player: Player) -> Result {
        self.end(Signal::SIGTERM).await?;
        self.boot(player).await
    }

    /// Asks for everything that the node keeps: same status, same process, same shim, and live execs live. What our manager
    /// has on the disk has to be true as well.
    ///
    /// # Errors
    /// When something is not as it should be.
    pub async fn check(&self) -> Result {
        self.all_found().await?;
        if self.has_manager() {
            for id in self.kept.keys() {
                self.disk_is_true(id).await?;
            }
        }
        Ok(())
    }

    /// The same, whatever is on the disk.
    async fn all_found(&self) -> Result {
        for (id, kept) in &self.kept {
            let expected = Some((kept.pid, kept.status));
            // A shim that has just been found again may still be asked by containerd itself.
            let found = self.status(id).await?;
            ensure!(
                found.map(|found| found.1) == Some(kept.status)
                    && (kept.status == Status::Stopped || found == expected),
                "{id} is {found:?} to {}, and not {expected:?}\n{}",
                self.player,
                self.log_tail()
            );
            ensure_eq!(self.shim_of(id).await?, kept.shim, "shim of {id}");
            for (exec, pid) in &kept.execs {
                ensure!(is_alive(*pid), "exec {exec} of {id} has ended");
            }
        }
        Ok(())
    }

    /// The ids of what the node keeps.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.kept.keys().cloned().collect()
    }

    /// The process of a kept container's shim.
    ///
    /// # Errors
    /// When there is no such container.
    pub fn shim(&self, id: &str) -> Result<u32> {
        Ok(self.kept(id)?.shim)
    }

    /// Whether a kept container has ended for good, whatever anybody says of it.
    ///
    /// # Errors
    /// When there is no such container.
    pub fn has_ended(&self, id: &str) -> Result<bool> {
        Ok(!is_alive(self.kept(id)?.pid))
    }

    /// Stops counting on containers: they have been lost, on purpose or by a release's own doing.
    pub fn give_up(&mut self, ids: &[String]) {
        self.kept.retain(|id, _| !ids.contains(id));
    }

    /// A container whose task is gone by a release's own doing: its record goes too.
    ///
    /// # Errors
    /// When the record cannot be removed.
    pub async fn forget(&mut self, id: &str) -> Result {
        self.containerd()?.must(&["containers", "rm", id]).await?;
        self.give_up(&[id.to_owned()]);
        Ok(())
    }

    /// Ends the last player, when nothing is kept any more.
    ///
    /// # Errors
    /// When something is kept still, or the player holds what it should have let go, or does not end.
    pub async fn close(mut self) -> Result {
        ensure!(self.kept.is_empty(), "still kept: {:?}", self.kept.keys());
        if self.has_manager() {
            self.nothing_held().await?;
        }
        self.end(Signal::SIGTERM).await?;
        if let Some(disk) = self.disk.take() {
            let left: Vec<PathBuf> = paths::entries(&self.bundles()).collect();
            ensure!(left.is_empty(), "bundles stay: {left:?}");
            disk.unmount()?;
        }
        Ok(())
    }

    /// The end of the player's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        match &self.playing {
            Some(Playing::Whole(containerd)) => containerd.log_tail(),
            Some(Playing::Ours { glue: Some(glue), .. }) => glue.log_tail(),
            _ => String::new(),
        }
    }

    pub(super) fn kept(&self, id: &str) -> Result<&Kept> {
        self.kept.get(id).ok_or_else(|| Failure::new(format!("no {id} is kept")))
    }

    pub(super) fn kept_mut(&mut self, id: &str) -> Result<&mut Kept> {
        self.kept.get_mut(id).ok_or_else(|| Failure::new(format!("no {id} is kept")))
    }

    /// Whoever keeps the records.
    pub(super) fn containerd(&self) -> Result<&Containerd<'a>> {
        match &self.playing {
            Some(Playing::Whole(containerd)) => Ok(containerd),
            Some(Playing::Ours { behind, .. }) => Ok(behind),
            None => Err(Failure::new("nobody plays")),
        }
    }

    /// The manager, if it plays.
    pub(super) fn glue(&self) -> Option<&Glue<'a>> {
        match &self.playing {
            Some(Playing::Ours { glue, .. }) => glue.as_deref(),
            _ => None,
        }
    }

    /// The manager.
    pub(super) fn manager(&self) -> Result<&Glue<'a>> {
        self.glue().ok_or_else(|| Failure::new("the manager does not play"))
    }
}

/// `runc` on the node's disk obeys a script; without rules it is runc.
fn offer_scripted_runc(fixture: &Fixture) -> Result<FakeRunc> {
    let runc = FakeRunc::install(fixture)?;
    let wrapper: &Path = &fixture.file("runc.sh");
    // A stand-in finds its script by the path it is called by.
    fs::write(wrapper, format!("#!/bin/busybox sh\nexec {} \"$@\"\n", runc.path.display()))?;
    fs::set_permissions(wrapper, Permissions::from_mode(0o755))?;
    fixture.offer("runc", wrapper)?;
    Ok(runc)
}
