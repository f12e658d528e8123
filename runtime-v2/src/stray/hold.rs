//! A process that is to be signalled, held so that no signal can reach another of the same pid.

use std::os::fd::OwnedFd;

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};

use crate::procfs;

/// One process, by its pid and the time it was started.
#[derive(Debug)]
pub(super) struct Held {
    pid: Pid,
    started: u64,
    /// None on kernels before 5.3, and when descriptors have run out.
    fd: Option<OwnedFd>,
}

impl Held {
    /// Holds the process that was seen; none if it has ended.
    pub(super) fn new(pid: i32, started: u64) -> Option<Self> {
        let pid = Pid::from_raw(pid)?;
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return None,
            other => other.ok(),
        };
        let held = Self { pid, started, fd };
        // Looked at again now that it is held: the pid may have gone to another before.
        held.is_it().then_some(held)
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    fn is_it(&self) -> bool {
        procfs::stat(self.pid()).is_some_and(|stat| stat.started == self.started)
    }

    /// Sends a signal; one that has ended meanwhile needs none, and the next look tells of any
    /// other failure.
    pub(super) fn send(&self, signal: Signal) {
        let _ = match &self.fd {
            Some(fd) => pidfd_send_signal(fd, signal),
            None if self.is_it() => kill_process(self.pid, signal),
            None => Ok(()),
        };
    }
}
