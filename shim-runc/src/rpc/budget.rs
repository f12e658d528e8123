//! How much a connection may have under way.
//!
//! A call costs what it holds on to, and one that there is no room for is not read yet: the peer's writes wait, as they do
//! for any server that is busy. What is read is carried out, so nobody is turned away.
//!
//! Those that wait for the end of a process are not among them. They cost next to nothing, there are as many as there are
//! processes, and they end by calls that come later: those must not wait behind them. Only of these there can be too many.

use std::{os::fd::AsFd, sync::Arc, time::Duration};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use runtime_proto::{errdefs::Code, frame::MAX_PAYLOAD, ttrpc::Status};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::server::Kind;

/// A unit of room, in bytes.
pub(super) const UNIT: usize = 1 << 10;
/// What all calls under way may hold, in units: 16 MiB, that is four of the largest, or a thousand small ones. A manager
/// has some per container, and none that is large for long.
pub(super) const ROOM: usize = 16 << 10;
/// What a call costs beside its message: its task, and what it asks of others.
pub(super) const CALL: usize = 16;
/// How many may wait for the end of a process. A hundred times what a full node has in one shim.
pub(super) const WAITS: usize = 16 << 10;
/// How soon it is noticed that a peer is gone which there is no room to read from.
const LOOK: Duration = Duration::from_secs(1);

// The largest call fits.
const _: () = assert!(cost(MAX_PAYLOAD) <= ROOM);

/// The room of one connection.
#[derive(Debug)]
pub(super) struct Budget {
    calls: Arc<Semaphore>,
    waits: Arc<Semaphore>,
}

/// A call's part of the room, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit(#[expect(dead_code, reason = "held, not used")] OwnedSemaphorePermit);

/// The units that a call takes up whose message has this many bytes.
const fn cost(size: usize) -> usize {
    CALL + size.div_ceil(UNIT)
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { calls: Arc::new(Semaphore::new(ROOM)), waits: Arc::new(Semaphore::new(WAITS)) }
    }

    /// Waits until there is room for a call with a message of `size` bytes.
    pub(super) async fn admit(&self, kind: Kind, size: usize) -> Result<Permit, Status> {
        let closed = || Code::Internal.status("the connection has no room any more");
        if kind == Kind::Waits {
            let permit = Arc::clone(&self.waits).try_acquire_owned();
            return permit.map(Permit).map_err(|_| {
                let message = format!("{WAITS} calls of this connection wait already");
                Code::ResourceExhausted.status(&message)
            });
        }
        let units = u32::try_from(cost(size)).map_err(|_| closed())?;
        let permit = Arc::clone(&self.calls).acquire_many_owned(units).await;
        permit.map(Permit).map_err(|_| closed())
    }
}

/// Waits until the peer has hung up, which a connection that is not read from does not show by itself.
pub(super) async fn hung_up(stream: impl AsFd) {
    loop {
        sleep(LOOK).await;
        let mut look = [PollFd::new(stream.as_fd(), PollFlags::empty())];
        let seen = poll(&mut look, PollTimeout::ZERO);
        let gone =
            look.iter().filter_map(PollFd::revents).any(|it| it.contains(PollFlags::POLLHUP));
        if seen.is_err() || gone {
            return;
        }
    }
}
