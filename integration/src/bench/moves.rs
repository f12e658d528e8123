//! Keeps the kernel from waiting while a case is measured.
//!
//! A process that is put into a control group takes a lock that forks hold too. When nobody took it for some 20 ms, the
//! kernel first waits until all processors have passed a quiet state (`percpu_down_write`, `rcu_sync_enter`), which was
//! seen to take 7 to 16 ms: more than a bare `crun create` takes without, and more than all that shims and managers add.
//! Whether a runtime meets that wait depends on how long ago the one before it ran. So while runtimes are measured, a
//! process is moved to and fro, and nobody meets it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cgroup::Cgroups;
use crate::failure::{Context, Result};
use crate::fixture::Fixture;

/// Between two moves: well within the time after which the kernel waits again. A move takes some 50 µs.
const PAUSE: Duration = Duration::from_millis(4);

/// A process that is moved until this is dropped.
#[derive(Debug)]
pub(super) struct Moves {
    groups: [PathBuf; 2],
    process: Child,
    stop: Option<mpsc::Sender<()>>,
    moving: Option<JoinHandle<()>>,
}

impl Moves {
    /// Begins to move one.
    ///
    /// # Errors
    /// When there can be no control group below this program's own.
    pub(super) fn begin(fixture: &Fixture) -> Result<Self> {
        // Moves in any hierarchy take the same lock.
        let own = Cgroups::of(std::process::id())?.dir("freezer")?.to_owned();
        let groups = ["to", "fro"].map(|name| own.join(fixture.id(name)));
        for group in &groups {
            fs::create_dir(group).context(group.display())?;
        }
        let process = Command::new("sleep").arg("1000000").spawn().context("sleep")?;
        let (stop, stopped) = mpsc::channel();
        let (places, pid) = (groups.clone(), process.id());
        let mut moves = Self { groups, process, stop: Some(stop), moving: None };
        for place in &places {
            put(pid, place)?;
        }
        moves.moving = Some(std::thread::spawn(move || {
            let mut places = places.iter().cycle();
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                // It was possible before; and at worst a number is not as still as it could be.
                let _ = places.next().map(|place| put(pid, place));
            }
        }));
        Ok(moves)
    }
}

fn put(pid: u32, group: &Path) -> Result {
    fs::write(group.join("cgroup.procs"), pid.to_string()).context(group.display())
}

impl Drop for Moves {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.moving.take().map(JoinHandle::join);
        let _ = self.process.kill();
        let _ = self.process.wait();
        // What stays is found as a leak.
        for group in &self.groups {
            let _ = fs::remove_dir(group);
        }
    }
}
