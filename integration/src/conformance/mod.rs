//! The same calls, played against containerd's own shims and against the one under test, bare: every answer, the order of
//! the events, how the OCI runtime was called, and what is left. Where they differ, there is a reason, or it is an error.
//!
//! * `calls.txt`, [`script`]: what is played.
//! * [`peer`]: the shims. [`ask`], [`told`], [`play`], [`aftermath`]: calling one and noting what is seen.
//! * [`compare`](mod@compare): what differs; `reasons.txt`, [`reasons`]: why.
//! * [`page`]: all of it as a page for readers.

mod aftermath;
mod ask;
pub mod compare;
pub mod page;
pub mod peer;
pub mod play;
pub mod reasons;
pub mod script;
mod told;

pub use compare::{Comparison, compare};
