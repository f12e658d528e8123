//! Mounts of a container's root filesystem.

pub(crate) mod mountinfo;
