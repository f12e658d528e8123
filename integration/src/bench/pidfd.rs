//! Waiting for the end of a process that is nobody's child here: the init that a bare OCI runtime leaves behind.
#![expect(unsafe_code, reason = "pidfd_open has no safe wrapper")]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::deadline::HANG;
use crate::failure::{Failure, Result};

/// Blocks until a process has ended; one that is gone has.
///
/// # Errors
/// When it does not end, or the kernel has no pidfds.
pub(super) fn ended(pid: i32) -> Result {
    // SAFETY: pidfd_open takes two integers.
    let fd = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0) };
    let fd = match Errno::result(fd) {
        Err(Errno::ESRCH) => return Ok(()),
        fd => i32::try_from(fd?)?,
    };
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let limit = PollTimeout::try_from(HANG).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], limit)? {
        0 => Err(Failure::new(format!("process {pid} does not end"))),
        _ => Ok(()),
    }
}
