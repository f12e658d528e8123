//! System calls that neither the standard library nor nix wraps, each behind a safe function.
//!
//! * [`process`]: forking, subreaper, pidfds.
//! * `readiness`: epoll, through the runtime.
//! * [`title`]: the command line that `ps` shows.

pub mod process;
pub(crate) mod readiness;
pub mod title;
