//! A process that is to be signalled, as it was seen: a pid alone may be another's by now.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::procfs;

/// One process, by its pid and the time it was started.
#[derive(Debug)]
pub(super) struct Held {
    pid: i32,
    started: u64,
}

impl Held {
    /// The process that was seen; none if it has ended.
    pub(super) fn new(pid: i32, started: u64) -> Option<Self> {
        let held = Self { pid, started };
        held.is_it().then_some(held)
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    fn is_it(&self) -> bool {
        procfs::stat(self.pid).is_some_and(|stat| stat.started == self.started)
    }

    /// Sends a signal; one that has ended meanwhile needs none, and the next look tells of any
    /// other failure.
    pub(super) fn send(&self, signal: Signal) {
        if self.is_it() {
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}
