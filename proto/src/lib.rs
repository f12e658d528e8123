//! The wire contract between containerd, its task manager and its shims. No I/O happens here.
//!
//! From the bottom up:
//!
//! * [`errdefs`]: the error classes and their codes; the only code table. [`error`](mod@error): a class,
//!   what was being done, and the cause.
//! * [`any`](mod@any): packing and unpacking of `google.protobuf.Any` by containerd's type URL rules.
//! * [`topics`]: the events a runtime publishes and the topic of each.
//! * [`options`]: what a client may tell the runc shim, in every form it arrives.
//! * [`bootstrap`]: what is said on the command line, stdin and stdout of `shim start`, in every era.
//! * [`frame`]: the header of a ttrpc message.
//! * [`manager`](mod@manager): what a containerd build and the task manager say to each other.
//!
//! Message types come from the crate `containerd-shim-protos`; they are re-exported by the
//! service they belong to ([`task`], [`events`], [`sandbox`], [`types`]). Those of [`manager`](mod@manager)
//! are this project's own, and made from `manager/v1/manager.proto` when this crate is built.
//!
//! Reflection is never used: the descriptors of these messages cost a shim several hundred kB
//! once touched. So type names are constants, and messages are not printed with `{:?}` in a shim.

pub mod any;
pub mod bootstrap;
pub mod errdefs;
pub mod error;
pub mod frame;
pub mod manager;
pub mod options;
pub mod topics;

/// Metadata of a ttrpc request that names the namespace it is for (containerd pkg/namespaces/ttrpc.go).
pub const NAMESPACE_KEY: &str = "containerd-namespace-ttrpc";

pub use containerd_shim_protos as protos;
pub use protobuf;
pub use ttrpc::proto as ttrpc;

/// The task service, v2 and v3: the messages are the same on the wire, only the name differs.
pub mod task {
    pub use containerd_shim_protos::shim::shim::*;
    pub use containerd_shim_protos::types::task::{Process, ProcessInfo, Status};

    /// Full name of the service spoken by containerd 1.x and its shims.
    pub const SERVICE_V2: &str = "containerd.task.v2.Task";
    /// Full name of the service spoken by containerd 2.x and its shims.
    pub const SERVICE_V3: &str = "containerd.task.v3.Task";
}

/// Forwarding of events to containerd.
pub mod events {
    pub use containerd_shim_protos::events::task::*;
    pub use containerd_shim_protos::shim::event::Envelope;
    pub use containerd_shim_protos::shim::events::ForwardRequest;

    /// Full name of containerd's event sink on its ttrpc socket.
    pub const SERVICE: &str = "containerd.services.events.ttrpc.v1.Events";
}

/// The sandbox service of shims.
pub mod sandbox {
    pub use containerd_shim_protos::sandbox_api::*;

    /// Full name of the service.
    pub const SERVICE: &str = "containerd.runtime.sandbox.v1.Sandbox";
}

/// Types shared by services.
pub mod types {
    pub use containerd_shim_protos::types::{introspection::*, mount::Mount};
    pub use protobuf::well_known_types::{any::Any, empty::Empty, timestamp::Timestamp};
}

/// cgroup metrics as they travel in `Stats`.
pub mod metrics {
    pub use containerd_shim_protos::cgroups::metrics as v1;
    pub use containerd_shim_protos::cgroups_v2::metrics as v2;
}
