//! Work in a process of its own, for which nobody has to wait longer than they want to.

use std::{
    io::{self, Read, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use runtime_proto::errdefs::Code;

use crate::{
    error::{Error, Result},
    sys::process::{self, Fork},
};

/// What the process says when it has done its work.
const DONE: &str = "done";

/// Does `work` in a fork of this process, which must have one thread only.
///
/// # Errors
/// What the work says, as Unknown; DeadlineExceeded when it takes longer than `limit`. Its process is killed then, and
/// not waited for: it may be where no signal reaches it.
pub(super) fn run(limit: Duration, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let (mut reader, mut writer) = io::pipe().map_err(|error| Error::io("make a pipe", error))?;
    match process::fork().map_err(|error| Error::io("fork", error))? {
        Fork::Child => {
            drop(reader);
            // Whoever reads our output waits for everybody who could write to it.
            let said = match super::leave_streams().and_then(|()| work()) {
                Ok(()) => DONE.to_owned(),
                Err(error) => error.to_string(),
            };
            // The other one reads it, unless it is gone.
            let _ = writer.write_all(said.as_bytes());
            process::end()
        }
        Fork::Parent(child) => {
            drop(writer);
            let said = read_within(&mut reader, limit);
            if said.is_err() {
                let _ = process::kill(child, Signal::SIGKILL as i32);
            } else {
                process::wait_for(child);
            }
            match said.map_err(|error| Error::io("wait", error))? {
                said if said == DONE => Ok(()),
                said if said.is_empty() => {
                    Err(Error::new(Code::Unknown, "it ended without a word"))
                }
                said => Err(Error::new(Code::Unknown, said)),
            }
        }
    }
}

/// Reads a pipe or socket to its end, within a limit.
pub(super) fn read_within(pipe: &mut (impl Read + AsFd), limit: Duration) -> io::Result<String> {
    let deadline = Instant::now() + limit;
    let mut said = Vec::new();
    let mut piece = [0; 512];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, left) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            // A signal, which is no reason to give up.
            Err(Errno::EINTR) => continue,
            ready => ready?,
        };
        match pipe.read(&mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&said).into_owned()),
            count => said.extend_from_slice(&piece[..count]),
        }
    }
}
