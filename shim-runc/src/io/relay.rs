//! Moves bytes from one non-blocking descriptor to another, without a buffer that outlives a step.
//!
//! Bulk goes from pipe to pipe by splice(2): its pages are moved, not copied. A trickle is copied
//! through the stack instead, because a spliced line takes one of the 16 slots of a fifo for
//! itself, and an unread fifo would be full after 16 lines.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use nix::{
    errno::Errno,
    fcntl::{SpliceFFlags, splice},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{read, write},
};
use tokio::task::coop::consume_budget;

use super::{Watched, source::Source, surge::Surge};

/// What is copied at once: a write of this size to a fifo is atomic and takes one slot (`PIPE_BUF`).
pub(super) const COPY_CHUNK: usize = 4096;

/// What is spliced at once; the free slots of the sink are the true limit.
const SPLICE_CHUNK: usize = 1 << 20;

/// Which side ended a relay early.
#[derive(Debug)]
pub(super) enum Failure {
    Source(io::Error),
    Sink(io::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Little comes at a time; a full chunk switches to `Bulk`.
    Trickle,
    /// Much comes at a time; less than a chunk switches to `Trickle`.
    Bulk,
    /// One of the two is not a pipe.
    CopyOnly,
}

enum Step {
    Moved,
    SourceEmpty,
    SinkFull,
    End,
    SourceFailed(Errno),
    SinkFailed(Errno),
}

/// One stream on its way.
#[derive(Debug)]
pub(super) struct Relay {
    mode: Mode,
    /// Read but not yet taken by the sink; allocated only while that is so.
    held: Vec<u8>,
    surge: Surge,
}

impl Relay {
    /// `pipes`: both ends are pipes or fifos.
    pub(super) fn new(pipes: bool) -> Self {
        let mode = if pipes { Mode::Trickle } else { Mode::CopyOnly };
        Self { mode, held: Vec::new(), surge: Surge::default() }
    }

    /// Moves everything up to the end of `source`.
    pub(super) async fn run(&mut self, source: &mut Source, sink: &Watched) -> Result<(), Failure> {
        loop {
            // An eager writer must not keep the one thread from everybody else.
            consume_budget().await;
            let readable = if self.held.is_empty() {
                source.readable().await.map_err(Failure::Source)?
            } else {
                None
            };
            let mut writable = sink.writable().await.map_err(Failure::Sink)?;
            let failed = match self.step(source.fd(), sink.get_ref().as_fd()) {
                Step::Moved => continue,
                Step::End => return Ok(()),
                Step::SinkFull => {
                    writable.clear_ready();
                    continue;
                }
                Step::SinkFailed(errno) => return Err(Failure::Sink(errno.into())),
                Step::SourceFailed(errno) => errno,
                Step::SourceEmpty => match Source::emptied(readable, !source.is_pipe()) {
                    Ok(true) => return Ok(()),
                    Ok(false) => continue,
                    Err(errno) => errno,
                },
            };
            if source.recover(failed).await.map_err(|errno| Failure::Source(errno.into()))? {
                return Ok(());
            }
        }
    }

    fn step(&mut self, source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Step {
        if !self.held.is_empty() {
            self.flush(sink)
        } else if self.mode == Mode::Bulk {
            self.splice(source, sink)
        } else {
            self.copy(source, sink)
        }
    }

    fn splice(&mut self, source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Step {
        let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
        match splice(source, None, sink, None, SPLICE_CHUNK, flags) {
            Ok(0) => Step::End,
            Ok(moved) => {
                if moved < COPY_CHUNK {
                    self.mode = Mode::Trickle;
                    self.surge.over([source, sink]);
                } else {
                    self.surge.moved(moved, [source, sink]);
                }
                Step::Moved
            }
            Err(Errno::EAGAIN) => blocked_side(source, sink),
            Err(Errno::EINTR) => Step::Moved,
            Err(Errno::EPIPE) => Step::SinkFailed(Errno::EPIPE),
            // What forbids splice (a filter, an odd file system) may allow copying; if it does not,
            // the copy tells which side it was.
            Err(_) => {
                self.mode = Mode::CopyOnly;
                Step::Moved
            }
        }
    }

    fn copy(&mut self, source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Step {
        let mut chunk = [0; COPY_CHUNK];
        let filled = match read(source, &mut chunk) {
            Ok(0) => return Step::End,
            Ok(filled) => filled,
            Err(Errno::EAGAIN) => return Step::SourceEmpty,
            Err(Errno::EINTR) => return Step::Moved,
            Err(errno) => return Step::SourceFailed(errno),
        };
        if filled == COPY_CHUNK && self.mode == Mode::Trickle {
            self.mode = Mode::Bulk;
        }
        let chunk = &chunk[..filled];
        match write(sink, chunk) {
            Ok(written) if written == filled => Step::Moved,
            Ok(written) => {
                self.held = chunk[written..].to_vec();
                Step::Moved
            }
            Err(Errno::EAGAIN) => {
                self.held = chunk.to_vec();
                Step::SinkFull
            }
            Err(Errno::EINTR) => {
                self.held = chunk.to_vec();
                Step::Moved
            }
            Err(errno) => Step::SinkFailed(errno),
        }
    }

    fn flush(&mut self, sink: BorrowedFd<'_>) -> Step {
        match write(sink, &self.held) {
            Ok(written) if written == self.held.len() => {
                self.held = Vec::new();
                Step::Moved
            }
            Ok(written) => {
                self.held.drain(..written);
                Step::Moved
            }
            Err(Errno::EAGAIN) => Step::SinkFull,
            Err(Errno::EINTR) => Step::Moved,
            Err(errno) => Step::SinkFailed(errno),
        }
    }
}

/// splice(2) says EAGAIN for an empty source and for a full sink; poll(2) tells which. Asked later
/// than the readiness was taken, its answer is never older than what it leads to clear.
fn blocked_side(source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Step {
    let mut fds = [PollFd::new(source, PollFlags::POLLIN), PollFd::new(sink, PollFlags::POLLOUT)];
    // Retrying is right whatever a failed poll(2) would have said.
    if poll(&mut fds, PollTimeout::ZERO).is_err() {
        return Step::Moved;
    }
    // Errors and hang-ups count as ready: the next try meets them.
    match fds.map(|fd| fd.any().unwrap_or(true)) {
        [false, _] => Step::SourceEmpty,
        [true, false] => Step::SinkFull,
        [true, true] => Step::Moved,
    }
}

/// Reads a stream to its end for nobody, so that its process is never stopped by a full pipe.
pub(super) async fn discard(source: &mut Source) -> io::Result<()> {
    loop {
        consume_budget().await;
        let readable = source.readable().await?;
        let failed = match read_away(source.fd()) {
            Step::SourceFailed(errno) => errno,
            Step::SourceEmpty => match Source::emptied(readable, !source.is_pipe()) {
                Ok(true) => return Ok(()),
                Ok(false) => continue,
                Err(errno) => errno,
            },
            Step::End => return Ok(()),
            _ => continue,
        };
        if source.recover(failed).await? {
            return Ok(());
        }
    }
}

fn read_away(source: BorrowedFd<'_>) -> Step {
    let mut chunk = [0; COPY_CHUNK];
    match read(source, &mut chunk) {
        Ok(0) => Step::End,
        Ok(_) | Err(Errno::EINTR) => Step::Moved,
        Err(Errno::EAGAIN) => Step::SourceEmpty,
        Err(errno) => Step::SourceFailed(errno),
    }
}
