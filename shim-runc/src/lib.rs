//! The runc shim, as a library so that tests reach its rooms.
//!
//! From the bottom up; a room uses only those before it:
//!
//! * [`sys`]: system calls without a safe wrapper. [`error`]: kind, context, cause.
//! * [`files`]: small files that others wrote. [`threads`]: work that blocks in the kernel.
//! * [`reaper`]: the one waiter for children.
//! * [`rpc`]: ttrpc, server and client. [`publisher`]: events to containerd. [`log`]: the log.
//! * [`io`], [`mount`], [`cgroup`], [`spec`]: a container's streams, mounts, limits and spec.
//! * [`runc`]: calls of the OCI runtime. [`programs`]: calls of other programs.
//! * [`process`]: one process, with its pure state machine. [`exits`]: which exit is told when.
//! * [`container`]: a container and its verbs. [`registry`]: containers by id.
//! * [`service`]: the task service over all of this.
//! * [`boot`]: the actions of the binary.
//! * `foreign`: for tests, everything that reads bytes which somebody else wrote.
//!
//! To read it, begin with [`service`], which has a line for each call, and follow one down:
//! `container::create` is the longest. What must hold between the rooms is in `ARCHITECTURE.md`.
//!
//! `unsafe` is denied everywhere and let in, with a reason, at the top of the few files that need
//! it: `rg 'expect\(unsafe_code'` lists them.

pub mod boot;
pub mod cgroup;
pub mod container;
pub mod error;
pub mod exits;
pub mod files;
#[doc(hidden)]
pub mod foreign;
pub mod io;
pub mod log;
pub mod mount;
pub mod process;
pub mod programs;
pub mod publisher;
pub mod reaper;
pub mod registry;
pub mod rpc;
pub mod runc;
pub mod service;
pub mod spec;
pub mod sys;
pub mod threads;
