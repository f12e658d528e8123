//! What output is read from: the pipe of a process, or the master of its terminal.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::{errno::Errno, poll::PollFlags};
use tokio::{
    io::{Interest, unix::AsyncFdReadyGuard},
    select,
    sync::watch::Receiver,
    time::sleep,
};

use super::{Watched, pipe::events_now, watch};

/// Pauses between looks at a terminal that nobody holds open. A process may close its terminal and
/// open it later (systemd does so with /dev/console), and epoll, which goes on reporting the
/// hang-up, does not tell. The terminal's buffer holds what is written meanwhile.
const HANGUP_FIRST: Duration = Duration::from_millis(50);
const HANGUP_LAST: Duration = Duration::from_secs(2);

/// A non-blocking descriptor to read from, and how its end is recognised.
#[derive(Debug)]
pub(super) struct Source {
    fd: Watched,
    /// Only terminals: whether their process is gone. A pipe ends by itself.
    exited: Option<Receiver<bool>>,
}

/// Readiness as it was before a read was tried; `None`: do not wait, the process is gone.
type Ready<'a> = Option<AsyncFdReadyGuard<'a, Arc<OwnedFd>>>;

impl Source {
    /// Must be called inside the runtime.
    pub(super) fn pipe(fd: OwnedFd) -> io::Result<Self> {
        let fd = watch(fd, Interest::READABLE)?;
        Ok(Self { fd, exited: None })
    }

    /// Must be called inside the runtime.
    pub(super) fn terminal(master: Arc<OwnedFd>, exited: Receiver<bool>) -> io::Result<Self> {
        let fd = watch(master, Interest::READABLE)?;
        Ok(Self { fd, exited: Some(exited) })
    }

    /// Pipes can be spliced.
    pub(super) fn is_pipe(&self) -> bool {
        self.exited.is_none()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// The descriptor for a job on another thread.
    pub(super) fn share(&self) -> Arc<OwnedFd> {
        Arc::clone(self.fd.get_ref())
    }

    /// What can be read at once, up to one buffer. For a last look; edges are not kept track of.
    pub(super) fn read_now(&self) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let filled = nix::unistd::read(self.fd(), &mut buffer).unwrap_or(0);
        buffer.truncate(filled);
        buffer
    }

    /// Waits until reading may bring something, or until nothing more can come.
    pub(super) async fn readable(&self) -> io::Result<Ready<'_>> {
        let Some(exited) = &self.exited else {
            return self.fd.readable().await.map(Some);
        };
        let mut exited = exited.clone();
        select! {
            biased;
            // An error means that the sender is gone, and with it everyone who cares.
            _ = exited.wait_for(|gone| *gone) => Ok(None),
            ready = self.fd.readable() => ready.map(Some),
        }
    }

    /// After a read that found nothing: `Ok(true)` when nothing will come any more, `Ok(false)` to
    /// wait, an error to [`recover`](Self::recover) from. `ready` must be from before that read, or
    /// an edge in between would be lost.
    pub(super) fn emptied(ready: Ready<'_>, terminal: bool) -> Result<bool, Errno> {
        let Some(mut ready) = ready else { return Ok(true) };
        if ready.ready().is_read_closed() {
            // All writers were gone before the read. tokio never clears "closed", so waiting would
            // spin: a terminal starts afresh, and for a fifo a writer that came since is too late.
            return if terminal { Err(Errno::EIO) } else { Ok(true) };
        }
        ready.clear_ready();
        Ok(false)
    }

    /// After a failed read: `Ok(true)` at the end of a terminal, `Ok(false)` to read again.
    pub(super) async fn recover(&mut self, errno: Errno) -> Result<bool, Errno> {
        let Some(exited) = &mut self.exited else { return Err(errno) };
        if errno != Errno::EIO {
            return Err(errno);
        }
        // EIO is the hang-up: no process has the terminal open, and all output was read.
        if *exited.borrow() {
            return Ok(true);
        }
        let mut pause = HANGUP_FIRST;
        loop {
            select! {
                _ = exited.wait_for(|gone| *gone) => return Ok(false),
                () = sleep(pause) => {}
            }
            pause = HANGUP_LAST.min(pause * 2);
            let events = events_now(self.fd.get_ref(), PollFlags::POLLIN);
            if events.contains(PollFlags::POLLIN) || !events.contains(PollFlags::POLLHUP) {
                break;
            }
        }
        // Only a new registration forgets the hang-up, and one number cannot be registered twice.
        let again = self.fd.get_ref().try_clone().map_err(|_| errno)?;
        self.fd = watch(again, Interest::READABLE).map_err(|_| errno)?;
        Ok(false)
    }
}
