//! The task manager of a node, by itself: its process, its end, the next one, and what it holds.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::glue::Glue;
use super::node::{Node, Playing};
use super::player::Player;
use crate::containerd::Containerd;
use crate::deadline::{self, HANG};
use crate::failure::{Failure, Result};
use crate::leak::Descriptors;

/// What the kernel calls the manager: the first of its name's letters.
const COMM: &str = "containerd-task";

impl<'a> Node<'a> {
    /// Whether the tasks are the manager's now, as a process of the harness's or of our build's.
    pub(super) fn has_manager(&self) -> bool {
        self.player.is_ours() && self.playing.is_some()
    }

    /// The manager's process.
    fn manager_pid(&self) -> Option<u32> {
        match &self.playing {
            Some(Playing::Ours { glue, .. }) => glue.as_ref()?.pid(),
            Some(Playing::Whole(build)) if self.has_manager() => child(build.pid()?),
            _ => None,
        }
    }

    /// Kills the manager alone.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn kill_manager(&mut self) -> Result {
        let none = || Failure::new("no manager to be killed");
        let pid = self.manager_pid().ok_or_else(none)?;
        if let Some(Playing::Ours { glue, .. }) = &mut self.playing {
            return glue.take().ok_or_else(none)?.kill().await;
        }
        kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?;
        // Reaped by the build: only then is the next child another.
        let what = format!("the end of manager {pid}");
        deadline::until(&what, HANG, || self.manager_pid() != Some(pid)).await
    }

    /// Starts another manager, or waits until our build has done that.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) async fn start_manager(&mut self) -> Result {
        if self.player == Player::Ours {
            let started = self.attach(self.containerd()?).await?;
            if let Some(Playing::Ours { glue, .. }) = &mut self.playing {
                *glue = Some(Box::new(started));
            }
            return Ok(());
        }
        deadline::until_some("another manager", HANG, || self.manager_pid()).await?;
        // The build lets calls wait for a manager that is coming up, for some seconds.
        self.containerd()?.must(&["tasks", "ls"]).await.map(drop)
    }

    /// What the plugin does when containerd starts.
    pub(super) async fn attach(&self, behind: &Containerd<'_>) -> Result<Glue<'a>> {
        let pods = self.kept.values().filter(|kept| kept.container.on_record);
        let sandboxes: BTreeSet<String> =
            pods.filter_map(|kept| kept.container.sandbox.clone()).collect();
        let sandboxes: Vec<String> = sandboxes.into_iter().collect();
        Glue::attach(self.fixture, behind, &sandboxes).await
    }

    /// A manager that has seen all come and go holds exactly what one holds that has seen nothing.
    pub(super) async fn nothing_held(&mut self) -> Result {
        let mut used = Descriptors::default();
        // What a load does last, it does while it serves: it looks through directories.
        let at_rest = || {
            used = Descriptors::of(self.manager_pid().unwrap_or_default());
            !used.has_directory()
        };
        deadline::until("a manager that looks through no directory", HANG, at_rest).await?;
        self.kill_manager().await?;
        self.start_manager().await?;
        let mut more = used.clone();
        // A moment after it has loaded, the fresh one connects to containerd, whose events it reads from then on.
        let settled = deadline::until("a manager that has settled", HANG, || {
            more = used.clone();
            more.remove(&Descriptors::of(self.manager_pid().unwrap_or_default()));
            more.is_empty()
        });
        let settled = settled.await;
        settled
            .map_err(|_| Failure::new(format!("the manager holds more than a fresh one: {more}")))
    }
}

/// The manager among a containerd's children. A shim that is being started is none.
fn child(containerd: u32) -> Option<u32> {
    let threads = crate::paths::entries(format!("/proc/{containerd}/task").as_ref());
    let children = threads.filter_map(|thread| fs::read_to_string(thread.join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().map(str::parse).collect::<Vec<_>>())
        .flatten()
        .collect();
    let named = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == COMM)
    };
    children.into_iter().find(named)
}
