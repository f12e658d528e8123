//! Mounts of a container's root filesystem: made at Create, taken away at Delete.
//!
//! * [`mount_all`] makes them in order, with containerd's meaning of every option, and gives a
//!   guard that takes them away again unless it is told to keep them.
//! * [`unmount_recursive`] takes away whatever is mounted on or below a directory; [`detach_recursive`] does so where
//!   that hangs.
//!
//! Parts: `options` (words to flags), `target` (a path that cannot leave the root), `overlay`
//! (more layers than mount(2) has room for), `id_map`, `loop_device`, `helper` (FUSE), `unmount`,
//! `mountinfo` (the kernel's table), `syscall` (what is unsafe).
//!
//! Everything here blocks: on disks, on servers of network filesystems, on busy mounts.

mod helper;
pub(crate) mod id_map;
mod loop_device;
pub(crate) mod mountinfo;
#[cfg(test)]
pub(crate) mod on_this_kernel;
pub(crate) mod options;
pub(crate) mod overlay;
mod syscall;
mod target;
mod unmount;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use runtime_proto::errdefs::Code;

use self::loop_device::LoopDevice;
use self::options::{Options, PER_MOUNT};
use crate::error::{Error, Result};

pub use self::helper::{MountHelper, NoHelper};
pub use self::unmount::{PATIENCE, detach_recursive, unmount_recursive};

/// A mount as containerd asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mount {
    /// Type of the filesystem; `bind` or anything for bind mounts.
    pub type_: String,
    /// Device, directory, or a name that only the filesystem understands.
    pub source: String,
    /// Path below the root filesystem; empty for the root itself.
    pub target: String,
    /// Options in the words of fstab(5).
    pub options: Vec<String>,
}

/// Mounts `mounts` on `rootfs`, one after the other, each at its target below it.
///
/// # Errors
/// When one of them cannot be made; those before it have been taken away again then.
pub fn mount_all(
    rootfs: &Path,
    mounts: &[Mount],
    helper: &dyn MountHelper,
) -> Result<RootfsMounts> {
    let mut made = RootfsMounts { rootfs: rootfs.to_owned(), targets: Vec::new() };
    for mount in mounts {
        made.add(mount, helper).map_err(|error| {
            let (kind, source, target) = (&mount.type_, &mount.source, &mount.target);
            let place = rootfs.join(target.trim_start_matches('/'));
            error.within(format_args!("mount {kind} {source:?} on {}", place.display()))
        })?;
    }
    Ok(made)
}

/// Mounts that were made on a root filesystem. Dropping it takes them away, the last one first.
#[derive(Debug)]
#[must_use = "dropping this takes the mounts away again"]
pub struct RootfsMounts {
    rootfs: PathBuf,
    targets: Vec<String>,
}

impl RootfsMounts {
    /// Leaves the mounts where they are.
    pub fn keep(mut self) {
        self.targets.clear();
    }

    fn add(&mut self, mount: &Mount, helper: &dyn MountHelper) -> Result<()> {
        let options = Options::parse(&mount.options);
        let rootfs = self.rootfs.clone();
        let place = Place { root: &rootfs, path: &mount.target };
        if let Some((program, kind)) = helper::program_for(&mount.type_) {
            let target = place.open().and_then(|fd| fs::read_link(target::path_of(&fd)));
            let target = target.map_err(|error| Error::io("find the target", error))?;
            helper.run(program, &helper::arguments(mount, kind, &target))?;
            self.targets.push(mount.target.clone());
            return Ok(());
        }
        let user_namespace = id_map::namespace_for(&options.id_maps)?;
        make(mount, &options, &place, user_namespace.as_ref())?;
        if !options.is_remount() {
            self.targets.push(mount.target.clone());
        }
        finish(mount, &options, &place, user_namespace.as_ref())
    }
}

impl Drop for RootfsMounts {
    fn drop(&mut self) {
        for path in std::mem::take(&mut self.targets).iter().rev() {
            if let Err(error) = (Place { root: &self.rootfs, path }).detach() {
                let rootfs = self.rootfs.display();
                tracing::warn!(%rootfs, target = %path, %error, "mount not taken away");
            }
        }
    }
}

/// Where a mount goes: a path that is looked up inside of the root whenever it is needed, since
/// what is mounted there changes what the path leads to.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    root: &'a Path,
    path: &'a str,
}

impl Place<'_> {
    /// What is there now: the topmost mount, if there is one.
    fn open(&self) -> io::Result<OwnedFd> {
        Ok(target::open_in_root(self.root, self.path)?)
    }

    /// Takes the topmost mount away.
    ///
    /// Lazily, because the descriptor that makes sure it is the right one keeps it busy itself. It
    /// ends with the descriptor: no process of a container has been there yet.
    fn detach(&self) -> io::Result<()> {
        let top = self.open()?;
        Ok(umount2(&target::path_of(&top), MntFlags::MNT_DETACH)?)
    }
}

/// The mount itself.
fn make(
    mount: &Mount,
    options: &Options,
    place: &Place<'_>,
    user_namespace: Option<&OwnedFd>,
) -> Result<()> {
    let target = place.open().map_err(|error| Error::io("find the target", error))?;
    let needs_more = user_namespace.is_some() || !overlay::fits(&options.data);
    if mount.type_ == overlay::TYPE && needs_more && !options.is_remount() {
        return overlay::mount(mount, options, place.root, target.as_fd(), user_namespace);
    }
    if !overlay::fits(&options.data) {
        let text = "its options are longer than a page of memory";
        return Err(Error::new(Code::InvalidArgument, text));
    }
    let device = options.loop_device.then(|| {
        let read_only = options.flags.contains(MsFlags::MS_RDONLY);
        LoopDevice::of(Path::new(&mount.source), read_only)
            .map_err(|error| Error::io("set up a loop device", error))
    });
    let device = device.transpose()?;
    let source = device.as_ref().map_or(Path::new(&mount.source), |device| device.path.as_path());
    system_mount(source, &target, &mount.type_, options.flags, &options.data.join(","))
}

fn system_mount(
    source: &Path,
    target: &OwnedFd,
    kind: &str,
    flags: MsFlags,
    data: &str,
) -> Result<()> {
    let some = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
    let (kind, data) = (some(kind), some(data));
    let (kind, data) = (kind.as_deref(), data.as_deref());
    mount(Some(source), &target::path_of(target), kind, flags, data)
        .map_err(|errno| Error::io("mount(2)", errno))
}

/// What takes calls of its own once the mount is there.
fn finish(
    mount: &Mount,
    options: &Options,
    place: &Place<'_>,
    user_namespace: Option<&OwnedFd>,
) -> Result<()> {
    let open = || place.open().map_err(|error| Error::io("find the new mount", error));
    if options.flags.contains(MsFlags::MS_BIND) && options.flags.intersects(PER_MOUNT) {
        let top = open()?;
        let kept =
            locked_flags(&top).map_err(|error| Error::io("read flags of the mount", error))?;
        let flags = MsFlags::MS_REMOUNT | (options.flags - MsFlags::MS_REC) | kept;
        system_mount(Path::new(""), &top, "", flags, "")
            .map_err(|error| error.within("apply the flags of a bind mount"))?;
    }
    if let Some(user_namespace) = user_namespace
        && mount.type_ != overlay::TYPE
    {
        let recursive = options.flags.contains(MsFlags::MS_REC);
        id_map::replace(place, user_namespace.as_fd(), recursive)
            .map_err(|error| Error::io("map the ids of the mount", error))?;
    }
    for kind in &options.propagation {
        system_mount(Path::new(""), &open()?, "", *kind, "")
            .map_err(|error| error.within("set the propagation"))?;
    }
    Ok(())
}

/// Flags that the mount has now. Those of a mount from another user namespace are locked: a remount
/// that leaves one out is refused.
fn locked_flags(mount: &OwnedFd) -> io::Result<MsFlags> {
    let has = fstatvfs(mount)?.flags();
    let pairs = [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ];
    Ok(pairs
        .into_iter()
        .filter(|(has_it, _)| has.contains(*has_it))
        .map(|(_, flag)| flag)
        .collect())
}
