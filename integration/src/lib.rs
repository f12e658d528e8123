//! What the tests, the demo and the benchmarks stand on. They drive the two *binaries* of this workspace, and Go's,
//! against real containerd, runc and crun; nothing here links the code under test.
//!
//! From the bottom up:
//!
//! 1. [`failure`], [`deadline`], [`paths`]: how a test fails, how it waits, where the binaries and runtimes are.
//! 2. [`leak`]: what exists on this machine because of a fixture: processes, sockets, mounts, cgroups, fifos, files.
//! 3. [`rootfs`], [`spec`], [`stdio`]: a container as an OCI runtime and a shim are given it; [`cgroup`]: as the kernel
//!    has it; [`hung_fs`]: a filesystem that hangs. [`event`], [`fakectrd`]: a sink for events that stands in for
//!    containerd.
//! 4. [`fixture`]: what one test has for itself. [`bundle`]: a container's directory in it.
//! 5. [`scenario`]: the frame of every test. It makes a fixture, gives it to the test, and afterwards proves that the
//!    machine is as it was. [`demo`], [`page`]: the same for a person to watch.
//! 6. [`task`], [`fakerunc`], [`logger`]: a ttrpc client for both task services, an OCI runtime that can be made to
//!    misbehave, and programs that read output.
//! 7. [`shim`], [`container`]: one shim, started as the managers of each containerd series start it.
//! 8. [`hybrid`], [`image`], [`terminal`], [`ctr`], [`grpc`], [`met`], [`metrics`], [`service`], [`containerd`]: a private
//!    daemon of any series at hand, its clients, and which of them were met. [`daemon`]: the task manager as a daemon in front of one. [`attach`]: the same, called as
//!    a containerd's plugin calls it. [`cri`]: a node for pods, with the task manager in its containerd. [`upgrade`]: a
//!    node whose containerd changes below its containers.
//! 9. [`soak`]: lasting work for one shim. [`conformance`]: one script of calls for every shim. [`bench`](mod@bench): how long, how
//!    much.
//!
//! To write a test, begin with [`scenario::scenario`] and [`container::Container`], and read `tests/lifecycle.rs`.

pub mod attach;
pub mod bench;
pub mod bundle;
pub mod cgroup;
pub mod conformance;
pub mod container;
pub mod containerd;
pub mod cri;
pub mod ctr;
pub mod daemon;
pub mod deadline;
#[cfg(test)]
mod defects;
pub mod demo;
pub mod event;
pub mod failure;
pub mod fakectrd;
pub mod fakerunc;
pub mod fixture;
pub mod grpc;
pub mod hung_fs;
pub mod hybrid;
pub mod image;
pub mod leak;
pub mod logger;
pub mod met;
pub mod metrics;
pub mod page;
pub mod paths;
pub mod rootfs;
pub mod scenario;
pub mod service;
pub mod shim;
pub mod soak;
pub mod spec;
pub mod stdio;
pub mod task;
pub mod terminal;
pub mod upgrade;
