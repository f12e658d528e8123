//! Registers descriptors with the runtime's epoll.
#![expect(unsafe_code, reason = "tokio asks for the lifetime of a descriptor to be vouched for")]

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use nix::sys::eventfd::EventFd;
use tokio::io::{Interest, unix::AsyncFd};

/// Owners of a descriptor that keep it open, and the same, for as long as they are there.
pub(crate) trait Steady: AsRawFd {}

impl Steady for Arc<OwnedFd> {}
impl Steady for EventFd {}
impl Steady for File {}

/// Watches a non-blocking descriptor. Must be called inside the runtime.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn watch<T: Steady>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the owner keeps its descriptor open, and the same, until it is dropped, which the `AsyncFd` does no sooner
    // than it is dropped itself or gives the owner back.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(io::Error::from)
}
