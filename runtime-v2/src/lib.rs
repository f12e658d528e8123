//! containerd's task manager as a library: it starts, finds again and stops shims, and drives
//! their tasks. A node agent embeds it with its own container records and its own event sink; no
//! containerd is needed.
//!
//! # To begin with
//!
//! A [`Config`] says where things are, an [`Environment`] what the embedder gives: its records and
//! its event sink. [`TaskManager::new`] takes both and touches nothing; [`TaskManager::load`] finds
//! the shims that an earlier manager has left. From there on [`TaskManager::create`] gives a
//! [`Task`], whose verbs are those of containerd, and [`TaskManager::delete`] ends it. Where no
//! containerd listens for the events of shims, an [`EventSocket`] does.
//!
//! `examples/run_bundle.rs` is all of that in one page, `docs/embedding.md` what it takes to do it
//! for good.
//!
//! # Parts, from the bottom up
//!
//! A part uses those before it, and its neighbours in the same line.
//!
//! * [`ttrpc`]: a connection that knows when it closes; a small server. `grpc` is the same for
//!   shims that speak gRPC.
//! * [`id`] and [`error`]: names that are safe in paths; one error type whose kind is an RPC code.
//! * `procfs`: what the kernel tells of processes.
//! * [`config`]: the surroundings. No path is built in. [`events`] and [`stores`]: what an embedder
//!   gives; [`activation`]: who makes mounts that no shim can make. `state_lock` claims the
//!   directories for one manager.
//! * [`hearing`]: which events of shims the manager is shown, and what their silence says.
//! * `address` dials what shims have called addresses, `socket_file` removes a dead one's.
//! * [`bundle`]: the directory of a container on the host. `runtime_path` and `shim_binary` find
//!   and run a shim's executable, `features` asks it what it can, `shim_log` reads its log.
//! * `shim_users` counts who uses a process; `stray` ends one that nobody can end by asking.
//! * [`client`]: the task service over a connection, and the downgrade from v3 to v2.
//! * [`shim`]: one shim as one bundle sees it. [`shim_manager`] is the registry: it starts, joins
//!   and ends shims and knows nothing of tasks.
//! * [`task`]: what can be done with a task, and `observed`, what events tell of it.
//!   [`task_manager`] is the registry of those; `create`, `delete`, `dead_shim` and `load` are its
//!   four long stories; `dead_bundle` is a part of two of them.
//! * [`inspect`]: a look at the shims of a state directory, from outside of their manager.
//!   [`event_socket`] takes the events of shims where there is no containerd to do it.
//!
//! # What holds
//!
//! * An id has at most one entry, taken before anything is made and free when nothing is left.
//! * A shim that was started is an entry, or is ended again.
//! * A task has one exit event and one delete event, whoever publishes them.
//! * No wait is without a limit; what cleans up has a budget of its own, not the caller's rest.
//! * Nothing depends on the caller: one that goes away neither stops a deletion nor leaves half a
//!   creation behind.

pub mod activation;
pub mod bundle;
pub mod client;
pub mod config;
pub mod error;
pub mod event_socket;
pub mod events;
pub mod hearing;
pub mod id;
pub mod inspect;
pub mod shim;
pub mod shim_manager;
pub mod stores;
pub mod task;
pub mod task_manager;
pub mod ttrpc;

mod address;
mod create;
mod dead_bundle;
mod dead_shim;
mod delete;
mod features;
mod grpc;
mod load;
mod observed;
mod procfs;
mod runtime_path;
mod shim_binary;
mod shim_log;
mod shim_users;
mod socket_file;
mod state_lock;
mod stray;

pub use activation::{Activation, MountActivator, ShimMounts};
pub use config::{Config, Daemon, Timeouts};
pub use create::{CreateOptions, Endpoint, Restoration};
pub use error::{Error, Result};
pub use event_socket::EventSocket;
pub use events::{EventSink, Exchange};
pub use hearing::Hearing;
pub use id::{ContainerId, ExecId, Key, Namespace};
pub use load::{LoadReport, Loading};
pub use runtime_proto::errdefs::Code;
pub use state_lock::StateLock;
pub use stores::{ContainerStore, MemoryStore, SandboxStore};
pub use task::{ExecOptions, Exit, ProcessId, ProcessInfo, ProcessState, Stdio, Task};
pub use task_manager::{Environment, TaskManager};
