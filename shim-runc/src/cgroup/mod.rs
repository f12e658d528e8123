//! Control groups: what a container used, whether the kernel killed one of its processes for
//! memory, and whether it is frozen. On v1, hybrid and unified hosts alike.
//!
//! * `membership`, `layout`: from a pid to directories, by the kernel's tables and no fixed path.
//! * `text`, `files`: the forms of cgroup files, read so that no content and no absence is fatal.
//! * `v1` (with `blkio`), `v2`, `rdma`: the metrics messages, one for each kind of host.
//! * [`OomWatch`]: kills for lack of memory, told once each.
//! * `freezer`, `controllers`: the two things written into a container's cgroup.
//! * [`add_pid`], [`adjust_oom_score`]: where the shim itself is put.
//!
//! A hybrid host, v1 controllers with a v2 tree beside them, is a v1 host here: the OCI runtimes
//! put a container's limits into the v1 hierarchies.
//!
//! Everything but the watch blocks for as long as the kernel needs to fill a few small files.

pub(crate) mod blkio;
mod controllers;
mod files;
pub(crate) mod freezer;
pub(crate) mod join;
pub(crate) mod layout;
pub(crate) mod membership;
#[cfg(test)]
mod on_this_kernel;
mod oom;
pub(crate) mod oom_score;
pub(crate) mod rdma;
mod text;
pub(crate) mod v1;
pub(crate) mod v2;

use std::fs;
use std::sync::Arc;

use runtime_proto::any;
use runtime_proto::errdefs::Code;
use runtime_proto::types::Any;

use self::layout::Layout;
use crate::error::{Error, Result};

pub use self::freezer::FreezerState;
pub use self::join::add_pid;
pub use self::oom::OomWatch;
pub use self::oom_score::adjust_oom_score;

/// The cgroups of a container. Clones are cheap and mean the same ones.
#[derive(Debug, Clone)]
pub struct Cgroup {
    layout: Arc<Layout>,
}

impl Cgroup {
    /// The cgroups that a process is in now.
    ///
    /// # Errors
    /// NotFound when the process is gone, or is in no cgroup that this process can see.
    pub fn of_pid(pid: u32) -> Result<Self> {
        let table = format!("/proc/{pid}/cgroup");
        let memberships = fs::read(&table).map_err(|error| {
            // A process that ended between open and read answers ESRCH.
            let gone = error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32);
            let failed = Error::io(format!("read {table}"), error);
            if gone { failed.with_kind(Code::NotFound) } else { failed }
        })?;
        let mounts = layout::cgroup_mounts()
            .map_err(|error| Error::io("read the cgroup mounts of this process", error))?;
        let layout = Layout::find(&membership::parse(&memberships), &mounts);
        layout.map(Self::from).ok_or_else(no_cgroup)
    }

    /// What the container used: `io.containerd.cgroups.v2.Metrics` on a unified host, else
    /// `io.containerd.cgroups.v1.Metrics`.
    ///
    /// # Errors
    /// NotFound when the cgroup does not exist (any more).
    pub fn stats(&self) -> Result<Any> {
        if !self.layout.exists() {
            return Err(no_cgroup());
        }
        let packed = match &*self.layout {
            Layout::V1(_) => any::pack(&v1::metrics(&self.layout)),
            Layout::Unified { dir, .. } => any::pack(&v2::metrics(dir)),
        };
        packed.map_err(|error| Error::caused(Code::Internal, "encode cgroup metrics", error))
    }

    /// Whether the container is in the unified hierarchy (cgroup v2 alone).
    pub fn is_unified(&self) -> bool {
        matches!(*self.layout, Layout::Unified { .. })
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl From<Layout> for Cgroup {
    fn from(layout: Layout) -> Self {
        Self { layout: Arc::new(layout) }
    }
}

/// The error that containerd's clients know for a cgroup that is not there.
fn no_cgroup() -> Error {
    Error::new(Code::NotFound, "cgroup does not exist")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_has_no_cgroup() {
        let error = Cgroup::of_pid(u32::MAX).unwrap_err();
        assert_eq!(error.kind(), Code::NotFound);
    }

    #[test]
    fn a_removed_cgroup_does_not_exist() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().to_owned();
        let v1 = Cgroup::from(Layout::v1(&["memory"], &dir));
        let v2 = Cgroup::from(Layout::Unified { top: "/".into(), dir });
        assert_eq!(v1.stats().unwrap().type_url, "io.containerd.cgroups.v1.Metrics");
        assert_eq!(v2.stats().unwrap().type_url, "io.containerd.cgroups.v2.Metrics");
        drop(directory);
        for cgroup in [v1, v2] {
            let error = cgroup.stats().unwrap_err();
            assert_eq!(error.kind(), Code::NotFound);
            assert_eq!(error.to_string(), "cgroup does not exist");
        }
    }
}
