//! The client's fifos. Opening one waits for nobody, and nobody's absence is an error.

use std::{
    fs::OpenOptions,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    time::Duration,
};

use nix::poll::PollFlags;
use tokio::{io::Interest, time::sleep};

use super::{Watched, node::Node, pipe::events_now, watch};
use crate::error::{Error, Result};

/// Pauses while unread output waits for a late reader. The kernel announces a reader to nobody, so
/// it is asked for; inotify would tell, but its instances are few and shared by the whole node.
const LATE_READER_FIRST: Duration = Duration::from_millis(10);
const LATE_READER_LAST: Duration = Duration::from_secs(1);

/// A fifo to write output to.
#[derive(Debug)]
pub(super) struct FifoSink {
    pub(super) writer: Watched,
    /// A reader that never reads: the client may go away and come back, and no write ever fails.
    keeper: OwnedFd,
    /// A client was reading when the process began. If it has left by the end, it has left: what
    /// it did not read is kept for as long as anything is, and nothing waits for it.
    pub(super) was_read: bool,
}

/// A fifo to read input from.
#[derive(Debug)]
pub(super) struct FifoSource {
    pub(super) reader: OwnedFd,
    /// A writer that never writes: while it is open, a client that leaves is no end of file.
    pub(super) keeper: OwnedFd,
}

impl FifoSink {
    /// Must be called inside the runtime.
    pub(super) fn open(node: &Node) -> Result<Self> {
        // A non-blocking writer finds a reader or fails; a reader never waits.
        let first = open_end(node, OpenOptions::new().write(true)).ok();
        let was_read = first.is_some();
        let keeper = open_end(node, OpenOptions::new().read(true))?;
        let writer = match first {
            Some(writer) => writer,
            None => open_end(node, OpenOptions::new().write(true))?,
        };
        let writer = watch(writer, Interest::WRITABLE)
            .map_err(|error| Error::io("watch stdio fifo", error))?;
        Ok(Self { writer, keeper, was_read })
    }

    /// Ends the stream: whoever reads gets what is left and the end of file. What nobody has read
    /// stays for a late reader, for as long as this future is not dropped.
    pub(super) async fn finish(self) {
        let writer = self.writer.into_inner();
        let unread = events_now(&self.keeper, PollFlags::POLLIN).contains(PollFlags::POLLIN);
        drop(self.keeper);
        let mut pause = LATE_READER_FIRST;
        // With our own reader gone, an error on the writer says that there is no other.
        while unread && events_now(&writer, PollFlags::POLLOUT).contains(PollFlags::POLLERR) {
            sleep(pause).await;
            pause = LATE_READER_LAST.min(pause * 2);
        }
    }
}

impl FifoSource {
    pub(super) fn open(node: &Node) -> Result<Self> {
        let reader = open_end(node, OpenOptions::new().read(true))?;
        let keeper = open_end(node, OpenOptions::new().write(true))?;
        Ok(Self { reader, keeper })
    }
}

fn open_end(node: &Node, options: &mut OpenOptions) -> Result<OwnedFd> {
    options.custom_flags(libc::O_NONBLOCK);
    node.open(options)
        .map(OwnedFd::from)
        .map_err(|error| Error::io("open stdio fifo without waiting", error))
}
