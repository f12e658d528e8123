//! Mounts that show other owners of their files than the disk has: `uidmap=` and `gidmap=`.
//!
//! The kernel takes the mapping from a user namespace, and a namespace needs a process to begin
//! with; that one lives until its namespace has been opened.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;
use runtime_proto::errdefs::Code;

use super::syscall::{self, NamespaceHolder};
use super::{Place, target};
use crate::error::{Error, Result};

/// A user namespace with the mappings that a mount's options name; `None` unless there are both.
pub(super) fn namespace_for(maps: &(Option<String>, Option<String>)) -> Result<Option<OwnedFd>> {
    let (Some(users), Some(groups)) = maps else { return Ok(None) };
    let (users, groups) = (table("uidmap", users)?, table("gidmap", groups)?);
    create_namespace(&users, &groups)
        .map(Some)
        .map_err(|error| Error::io("make a user namespace for the ids of a mount", error))
}

/// The kernel's table for `<on disk>:<shown>:<count>[,…]`.
pub(crate) fn table(option: &str, maps: &str) -> Result<String> {
    let line = |map: &str| {
        let mut numbers = map.split(':').map(|number| number.parse::<u32>().ok());
        match (numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()) {
            (_, _, 0, _) | (_, _, _, Some(_)) => None,
            (disk, shown, count, None) => Some(format!("{disk} {shown} {count}\n")),
        }
    };
    maps.split(',').map(line).collect::<Option<String>>().ok_or_else(|| {
        Error::new(Code::InvalidArgument, format!("{option}={maps} is no list of id mappings"))
    })
}

fn create_namespace(users: &str, groups: &str) -> io::Result<OwnedFd> {
    let holder = NamespaceHolder::start()?;
    let path = |name: &str| format!("/proc/{}/{name}", holder.pid());
    fs::write(path("uid_map"), users)?;
    fs::write(path("gid_map"), groups)?;
    File::open(path("ns/user")).map(OwnedFd::from)
}

/// Puts a copy with mapped ids in the place of the mount that is there.
pub(super) fn replace(
    place: &Place<'_>,
    user_namespace: BorrowedFd<'_>,
    recursive: bool,
) -> io::Result<()> {
    let tree = syscall::clone_tree(place.open()?.as_fd(), recursive)?;
    syscall::map_ids(tree.as_fd(), user_namespace)?;
    place.detach()?;
    syscall::attach(tree.as_fd(), place.open()?.as_fd())
}

/// Copies of directories with mapped ids, attached for as long as this lives.
///
/// An overlay takes only layers that are attached somewhere (until Linux 6.15). All of them are
/// attached to one directory, on top of each other, and reached by their descriptors.
#[derive(Debug)]
pub(super) struct Staged {
    directory: PathBuf,
    trees: Vec<OwnedFd>,
}

impl Staged {
    /// Makes the directory to attach to: beside the root filesystem, in the container's bundle.
    pub(super) fn beside(rootfs: &Path) -> io::Result<Self> {
        let mut name = rootfs.file_name().unwrap_or_default().to_owned();
        name.push(".layers");
        let directory = rootfs.with_file_name(name);
        match fs::create_dir(&directory) {
            // Left by a process that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        Ok(Self { directory, trees: Vec::new() })
    }

    /// Attaches a copy of `layer`; a path that leads to it.
    pub(super) fn add(
        &mut self,
        layer: &Path,
        user_namespace: BorrowedFd<'_>,
    ) -> io::Result<PathBuf> {
        let place = |path: &Path| open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        let tree = syscall::clone_tree(place(layer)?.as_fd(), false)?;
        syscall::map_ids(tree.as_fd(), user_namespace)?;
        syscall::attach(tree.as_fd(), place(&self.directory)?.as_fd())?;
        let path = target::path_of(&tree);
        self.trees.push(tree);
        Ok(path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for _ in &self.trees {
            // Lazily: the descriptors are still open, and the overlay has copies of its own.
            if let Err(error) = umount2(&self.directory, MntFlags::MNT_DETACH) {
                tracing::warn!(directory = %self.directory.display(), %error, "layer stays mounted");
            }
        }
        if let Err(error) = fs::remove_dir(&self.directory) {
            tracing::warn!(directory = %self.directory.display(), %error, "directory stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mappings_become_the_kernels_table() {
        assert_eq!(table("uidmap", "0:1000:10").unwrap(), "0 1000 10\n");
        assert_eq!(table("uidmap", "0:0:1,1:100000:65535").unwrap(), "0 0 1\n1 100000 65535\n");
    }

    #[test]
    fn what_is_no_mapping_is_refused_by_name() {
        for maps in ["", "0:1", "0:1:2:3", "0:1:0", "a:1:2", "0:1:2,", "-1:0:1", "0:0:4294967296"] {
            let error = table("gidmap", maps).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{maps:?}");
            assert!(error.to_string().contains("gidmap"), "{error}");
        }
    }

    #[test]
    fn one_map_alone_maps_nothing() {
        let one = (Some("0:1:1".to_owned()), None);
        assert!(namespace_for(&one).unwrap().is_none());
        assert!(namespace_for(&(None, None)).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(maps in "[0-9:,a]{0,20}") {
            if let Ok(table) = table("uidmap", &maps) {
                prop_assert_eq!(table.lines().count(), maps.split(',').count());
            }
        }
    }
}
