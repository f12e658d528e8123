//! The upgrade story, on real releases: containers run on while manager, shim binary and containerd change below them, in
//! either direction, and in the end nothing is left. docs/upgrade.md tells which step proves what.
//!
//! Each story prints its steps while it is played: `make test-upgrade`.

#[path = "upgrade/binary.rs"]
mod binary;
#[path = "upgrade/lost.rs"]
mod lost;
#[path = "upgrade/mishaps.rs"]
mod mishaps;
#[path = "upgrade/order.rs"]
mod order;
#[path = "upgrade/pod.rs"]
mod pod;
#[path = "upgrade/releases.rs"]
mod releases;
#[path = "upgrade/tales.rs"]
mod tales;
#[path = "upgrade/ungrouped.rs"]
mod ungrouped;
