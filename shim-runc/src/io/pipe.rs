//! The pipes between a process and the shim, and what poll(2) can say about a descriptor.
//!
//! A process never gets the client's fifo itself: security modules refuse inherited files with a
//! foreign label, and a process could read its client's fifo. An anonymous pipe has neither fault.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::fchown,
    },
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::Owner;
use crate::error::{Error, Result};

/// A pipe between a process and the shim.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) ours: OwnedFd,
    pub(super) child: OwnedFd,
}

impl Pipe {
    /// The process writes, the shim reads without blocking.
    pub(super) fn output(owner: Owner) -> Result<Self> {
        let pipe = Self::logged(owner)?;
        set_nonblocking(&pipe.ours)?;
        Ok(pipe)
    }

    /// The process writes. The reading end blocks, as a logging binary expects it.
    pub(super) fn logged(owner: Owner) -> Result<Self> {
        let (reader, writer) = io::pipe().map_err(|error| Error::io("make output pipe", error))?;
        let (ours, child) = (OwnedFd::from(reader), OwnedFd::from(writer));
        hand_over(&child, owner)?;
        Ok(Self { ours, child })
    }

    /// The shim writes without blocking, the process reads.
    pub(super) fn input(owner: Owner) -> Result<Self> {
        let (reader, writer) = io::pipe().map_err(|error| Error::io("make input pipe", error))?;
        let (ours, child) = (OwnedFd::from(writer), OwnedFd::from(reader));
        hand_over(&child, owner)?;
        set_nonblocking(&ours)?;
        Ok(Self { ours, child })
    }
}

/// Lets a process of another user open `/dev/stdin`, `/dev/stdout` and `/dev/stderr` again.
fn hand_over(pipe: &OwnedFd, owner: Owner) -> Result<()> {
    fchown(pipe, Some(owner.uid), Some(owner.gid)).map_err(|error| {
        Error::io(format!("give stdio pipe to {}:{}", owner.uid, owner.gid), error)
    })
}

/// Makes one open file description non-blocking; the other end of a pipe is another one.
pub(super) fn set_nonblocking(fd: impl AsFd) -> Result<()> {
    let fd = fd.as_fd();
    let describe = |errno| Error::io("make stdio descriptor non-blocking", io::Error::from(errno));
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(describe)?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(fd, FcntlArg::F_SETFL(flags)).map_err(describe)?;
    Ok(())
}

/// The events that are true now. Never waits; a failing poll(2) tells nothing.
pub(super) fn events_now(fd: impl AsFd, interest: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), interest)];
    match poll(&mut fds, PollTimeout::ZERO) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::empty()),
        Err(_) => PollFlags::empty(),
    }
}
