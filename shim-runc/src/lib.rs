//! The runc shim, as a library so that tests reach its rooms.

pub mod cgroup;
pub mod error;
pub mod io;
pub mod mount;
