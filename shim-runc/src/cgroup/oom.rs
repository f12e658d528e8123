//! Kills for lack of memory, told once each.
//!
//! What counts is the kernel's counter of processes killed *in this cgroup*: it grows before the
//! victim gets its signal, so that it is up to date when the exit is seen, and a kill in a
//! neighbour below the same limit does not touch it. The notification only says when to look.
//!
//! * v2: `memory.events` is polled (`EPOLLPRI` comes when it changes). Its `oom_kill` includes
//!   the cgroups below. inotify would tell the same, but the instances of a node are few (128 for
//!   all shims together, by default).
//! * v1: an eventfd on `memory.oom_control`. It fires when memory has run out, before a victim is
//!   chosen, in every cgroup below the limit, and once more when the cgroup is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::files::is_gone;
use super::layout::Layout;
use super::{Cgroup, no_cgroup, text};
use crate::error::{Error, Result};
use crate::sys::readiness::watch;

/// When to look again at a v1 cgroup's counter after its eventfd fired. The victim is usually
/// counted at once, but it may first have to be found among many processes; and in most of the
/// cgroups that share the limit nothing follows at all, so looking ends.
const V1_LOOKS: [Duration; 4] = [
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
];

/// Room for `memory.events`, which is six short lines today.
const EVENTS_LEN: usize = 512;

/// Watches one container's cgroup. Open it before the container's process starts.
///
/// [`next`](Self::next) and [`poll_now`](Self::poll_now) may be used side by side: each kill is
/// told by one of them. Dropping the watch releases everything; nothing waits for it.
#[derive(Debug)]
pub struct OomWatch {
    source: Source,
    /// Kills that were told, or came before the watch.
    told: AtomicU64,
    /// Whether this kernel counts kills. In v1 it does since Linux 4.13; before, each
    /// notification stands for one.
    counts: bool,
}

#[derive(Debug)]
enum Source {
    /// The memory cgroup's directory and the eventfd registered with it.
    V1 { directory: PathBuf, event: AsyncFd<EventFd> },
    /// The open `memory.events`.
    V2 { events: AsyncFd<File> },
}

/// What a look at the counter found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// A kill that was not told yet.
    Killed,
    /// Nothing new.
    Quiet,
    /// The cgroup is gone.
    Gone,
}

impl OomWatch {
    /// Begins to watch. Must be called within a tokio runtime with I/O and time enabled.
    ///
    /// # Errors
    /// NotFound when the cgroup, or its memory controller, does not exist.
    pub fn open(cgroup: &Cgroup) -> Result<Self> {
        let directory = cgroup.layout().controller("memory").ok_or_else(no_cgroup)?;
        let source = match cgroup.layout() {
            Layout::V1(_) => Source::v1(directory),
            Layout::Unified { .. } => Source::v2(directory),
        };
        let context = || format!("watch {} for OOM kills", directory.display());
        let source = source.map_err(|error| Error::io(context(), error))?;
        let so_far = source.kills().map_err(|error| Error::io(context(), error))?;
        let (told, counts) = (AtomicU64::new(so_far.unwrap_or(0)), so_far.is_some());
        Ok(Self { source, told, counts })
    }

    /// Waits for the next kill; `None` once the cgroup is known to be gone.
    pub async fn next(&self) -> Option<()> {
        loop {
            let look = match &self.source {
                Source::V1 { directory, event } => self.next_v1(directory, event).await,
                Source::V2 { events } => {
                    // Forgotten before the look: what comes after the look wakes again.
                    events.ready(Interest::PRIORITY).await.ok()?.clear_ready();
                    self.look()
                }
            };
            match look {
                Look::Killed => return Some(()),
                Look::Quiet => {}
                Look::Gone => return None,
            }
        }
    }

    /// Whether there was a kill that was not told yet. Asked when a process has exited, it knows
    /// of the kill that ended it.
    pub fn poll_now(&self) -> bool {
        match &self.source {
            Source::V1 { event, .. } if !self.counts => drain(event.get_ref()),
            _ => self.look() == Look::Killed,
        }
    }

    async fn next_v1(&self, directory: &Path, event: &AsyncFd<EventFd>) -> Look {
        let Ok(mut ready) = event.readable().await else { return Look::Gone };
        ready.clear_ready();
        if !drain(event.get_ref()) {
            return Look::Quiet;
        }
        // At once and without a pause: a notification that was taken must not get lost with a
        // waiter that is given up here.
        let mut look = self.look_v1_notified(directory);
        for pause in V1_LOOKS {
            if look != Look::Quiet {
                break;
            }
            tokio::time::sleep(pause).await;
            look = self.look_v1_notified(directory);
        }
        look
    }

    /// Looks once after a v1 notification.
    fn look_v1_notified(&self, directory: &Path) -> Look {
        let Ok(control) = read_oom_control(directory) else { return Look::Gone };
        let value = |key: &[u8]| text::value_of(&control, key);
        if !self.counts {
            return Look::Killed;
        }
        if value(b"oom_kill_disable") == Some(1) && value(b"under_oom") == Some(1) {
            // Nobody will be killed: the container stands still until it gets more memory, which
            // is what those who switched the killer off want to be told.
            return Look::Killed;
        }
        self.look()
    }

    fn look(&self) -> Look {
        match self.source.kills() {
            Ok(Some(kills)) if self.claim(kills) => Look::Killed,
            Ok(_) => Look::Quiet,
            Err(error) if is_gone(&error) => Look::Gone,
            Err(error) => {
                tracing::debug!(%error, "OOM counter not readable");
                Look::Quiet
            }
        }
    }

    /// Takes note of the counter; whether it grew. It falls when v1 cgroups below are removed.
    fn claim(&self, kills: u64) -> bool {
        self.told.swap(kills, Ordering::Relaxed) < kills
    }
}

impl Source {
    fn v1(directory: &Path) -> io::Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        // Needed until the registration only: the kernel holds the cgroup by itself then.
        let control = File::open(directory.join("memory.oom_control"))?;
        let line = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
        let mut registry =
            OpenOptions::new().write(true).open(directory.join("cgroup.event_control"))?;
        registry.write_all(line.as_bytes())?;
        let event = watch(event, Interest::READABLE)?;
        Ok(Self::V1 { directory: directory.to_owned(), event })
    }

    fn v2(directory: &Path) -> io::Result<Self> {
        let events = File::open(directory.join("memory.events"))?;
        Ok(Self::V2 { events: watch(events, Interest::PRIORITY)? })
    }

    /// The kernel's counter; `None` when this kernel has none.
    fn kills(&self) -> io::Result<Option<u64>> {
        match self {
            Self::V1 { directory, .. } => v1_kills(directory),
            Self::V2 { events } => {
                let mut content = [0; EVENTS_LEN];
                let len = events.get_ref().read_at(&mut content, 0)?;
                Ok(text::value_of(content.get(..len).unwrap_or_default(), b"oom_kill"))
            }
        }
    }
}

/// The kills in a v1 cgroup and all below it: there each counts its own only, and a container may
/// have made cgroups for its processes.
fn v1_kills(directory: &Path) -> io::Result<Option<u64>> {
    let mut total = text::value_of(&read_oom_control(directory)?, b"oom_kill");
    let mut unread = vec![directory.to_owned()];
    while let Some(directory) = unread.pop() {
        // Cgroups below may vanish at any time.
        let Ok(entries) = directory.read_dir() else { continue };
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        for child in entries.flatten().filter(is_directory).map(|entry| entry.path()) {
            let control = read_oom_control(&child).unwrap_or_default();
            let kills = text::value_of(&control, b"oom_kill").unwrap_or(0);
            total = total.map(|total| total.saturating_add(kills));
            unread.push(child);
        }
    }
    Ok(total)
}

fn read_oom_control(directory: &Path) -> io::Result<Vec<u8>> {
    fs::read(directory.join("memory.oom_control"))
}

/// Takes the notifications that are waiting; whether there were any.
fn drain(event: &EventFd) -> bool {
    event.read().is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests;
