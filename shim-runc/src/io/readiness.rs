//! Registers descriptors with the runtime's epoll.

#![expect(unsafe_code, reason = "tokio asks for the lifetime of a descriptor to be vouched for")]

use std::{io, os::fd::OwnedFd, sync::Arc};

use tokio::io::{Interest, unix::AsyncFd};

/// A descriptor whose readiness the runtime knows.
pub(super) type Watched = AsyncFd<Arc<OwnedFd>>;

/// Watches a non-blocking descriptor. Must be called inside the runtime.
pub(super) fn watch(fd: impl Into<Arc<OwnedFd>>, interest: Interest) -> io::Result<Watched> {
    // SAFETY: an `OwnedFd` keeps its descriptor open, and the same, until it is dropped; the `Arc`
    // inside the `AsyncFd` drops it no sooner than the `AsyncFd` is dropped or gives it back.
    let watched = unsafe { AsyncFd::register_with_interest(fd.into(), interest) };
    watched.map_err(io::Error::from)
}
