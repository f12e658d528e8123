//! `containerd.taskmanager.v1.Manager`: what a containerd build with this project's plugin and the task manager say to each
//! other. The contract is `manager/v1/manager.proto`, whose comments tell what each message means.

// Generated; the file's own attributes, written for any crate, are not those of this workspace.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::cast_possible_truncation,
    clippy::too_many_lines,
    unreachable_pub,
    reason = "generated"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/manager/mod.rs"));
}

pub use generated::manager::*;

/// Full name of the service. A new major version has another.
pub const SERVICE: &str = "containerd.taskmanager.v1.Manager";

/// The version of the protocol that this workspace speaks.
pub const PROTOCOL: Version = Version { major: 1, minor: 0 };

/// A version of the protocol. Both ends say theirs in `Load`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// One that differs is refused.
    pub major: u32,
    /// A higher one only adds to a lower one.
    pub minor: u32,
}

impl Version {
    /// Whether a peer of this other version can be spoken with.
    pub const fn understands(self, other: Self) -> bool {
        self.major == other.major
    }
}
