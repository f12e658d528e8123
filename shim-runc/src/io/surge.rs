//! Larger pipes for streams that fill theirs.
//!
//! A pipe holds 64 KiB. Between a busy writer and a quick reader that is one wake-up of the shim for each 64 KiB, and the
//! wake-ups are what a stream costs, since its bytes are not touched. Larger pipes on both sides make them fewer.
//!
//! Only a stream that needs them has them, and only while it does: a pipe's slots count against what its user may have
//! (`pipe-user-pages-soft`), and an unread fifo holds what fits into it.

use std::os::fd::BorrowedFd;

use nix::fcntl::{FcntlArg, fcntl};

/// What a pipe holds if nobody asks for more.
const USUAL: i32 = 64 << 10;
/// What it is made to hold. Processor time for 1 GiB: 241 ms with the usual size, 178 with twice that, 46 with four times, 27
/// with eight times.
const LARGE: i32 = 256 << 10;
/// How many times in a row a stream has to fill a usual pipe. A process that says this much at once goes on, mostly.
const TIMES: u8 = 16;

/// Looks at the steps of one stream.
#[derive(Debug, Default)]
pub(super) struct Surge {
    full: u8,
    /// The pipes are larger than they were.
    large: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Larger,
    Usual,
}

impl Surge {
    /// After a step that moved this much from one pipe to the other: gives them the size that the stream needs.
    pub(super) fn moved(&mut self, bytes: usize, pipes: [BorrowedFd<'_>; 2]) {
        if self.count(bytes) == Some(Change::Larger) {
            for pipe in pipes {
                resize(pipe, USUAL, LARGE);
            }
        }
    }

    /// After the stream has become a trickle.
    pub(super) fn over(&mut self, pipes: [BorrowedFd<'_>; 2]) {
        if self.end() == Some(Change::Usual) {
            for pipe in pipes {
                resize(pipe, LARGE, USUAL);
            }
        }
    }

    fn count(&mut self, bytes: usize) -> Option<Change> {
        if self.large {
            return None;
        }
        self.full = if bytes >= USUAL.unsigned_abs() as usize { self.full + 1 } else { 0 };
        self.large = self.full == TIMES;
        self.large.then_some(Change::Larger)
    }

    fn end(&mut self) -> Option<Change> {
        self.full = 0;
        std::mem::take(&mut self.large).then_some(Change::Usual)
    }
}

/// Changes the size of a pipe that has this size; one that its owner has given another stays as it is. So does one where the
/// kernel refuses: because of a limit, or since it holds more than would fit.
fn resize(pipe: BorrowedFd<'_>, from: i32, to: i32) {
    if fcntl(pipe, FcntlArg::F_GETPIPE_SZ) == Ok(from) {
        let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(to));
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::fd::AsFd as _};

    use super::*;

    const FULL: usize = 64 << 10;

    fn size(pipe: BorrowedFd<'_>) -> i32 {
        fcntl(pipe, FcntlArg::F_GETPIPE_SZ).unwrap()
    }

    #[test]
    fn only_full_steps_in_a_row_make_a_surge() {
        let mut surge = Surge::default();
        for _ in 0..3 {
            for _ in 1..TIMES {
                assert_eq!(surge.count(FULL), None);
            }
            assert_eq!(surge.count(FULL - 1), None);
        }
        for _ in 1..TIMES {
            assert_eq!(surge.count(FULL), None);
        }
        assert_eq!(surge.count(FULL), Some(Change::Larger));
        assert_eq!(surge.count(4 * FULL), None);
        assert_eq!(surge.count(1), None);
        assert_eq!(surge.end(), Some(Change::Usual));
        assert_eq!(surge.end(), None);
        assert_eq!(surge.count(FULL), None);
    }

    #[test]
    fn pipes_are_large_for_as_long_as_it_lasts() {
        let ((source, _writer), (_reader, sink)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let pipes = [source.as_fd(), sink.as_fd()];
        let mut surge = Surge::default();
        for _ in 0..TIMES {
            assert_eq!(pipes.map(size), [USUAL; 2]);
            surge.moved(FULL, pipes);
        }
        assert_eq!(pipes.map(size), [LARGE; 2]);
        surge.over(pipes);
        assert_eq!(pipes.map(size), [USUAL; 2]);
    }

    #[test]
    fn a_size_that_somebody_chose_stays_and_what_is_held_is_kept() {
        let ((source, mut writer), (_reader, sink)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        fcntl(sink.as_fd(), FcntlArg::F_SETPIPE_SZ(128 << 10)).unwrap();
        let pipes = [source.as_fd(), sink.as_fd()];
        let mut surge = Surge::default();
        for _ in 0..TIMES {
            surge.moved(FULL, pipes);
        }
        assert_eq!(pipes.map(size), [LARGE, 128 << 10]);
        // More than would fit into a usual one.
        writer.write_all(&[0; 2 * FULL]).unwrap();
        surge.over(pipes);
        assert_eq!(pipes.map(size), [LARGE, 128 << 10]);
    }
}
