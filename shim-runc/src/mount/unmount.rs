//! Taking away everything that is mounted on and below a directory.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::mountinfo::{self, OWN_MOUNTS};
use crate::error::{Error, Result};

/// A mount is busy for a moment after the last process in it has ended, or while something looks
/// through all of a node's files. containerd waits as long.
const BUSY_ATTEMPTS: usize = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How often to look again for mounts that others covered. Each look takes a layer of them away,
/// and nobody mounts deeper than this on purpose.
const MAX_LOOKS: usize = 16;

/// Takes away every mount on and below `path`, the deepest first. Nothing mounted there, or nothing
/// there at all, is no error.
///
/// Nothing is taken away lazily: a mount that is in use stays in use, and is an error.
///
/// # Errors
/// When a mount stays; those beside it have been taken away all the same.
pub fn unmount_recursive(path: &Path) -> Result<()> {
    let Some(path) = as_in_table(path)? else { return Ok(()) };
    for _ in 0..MAX_LOOKS {
        let points =
            mount_points(&path).map_err(|error| Error::io(format!("read {OWN_MOUNTS}"), error))?;
        if points.is_empty() {
            return Ok(());
        }
        unmount_all(&points)?;
    }
    let still = format!("unmount {}: others mount there all the time", path.display());
    Err(Error::io(still, Errno::EBUSY))
}

/// The path as the mount table writes it; `None` if there is no such path. The last part is not
/// looked at: it may be a filesystem whose server is dead.
fn as_in_table(path: &Path) -> Result<Option<PathBuf>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.unwrap_or(Path::new(".")).canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("find {}", path.display()), error)),
    }
}

/// Where something is mounted on or below `path`: each place once, the deepest first.
fn mount_points(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut points = Vec::new();
    mountinfo::for_each(Path::new(OWN_MOUNTS), |entry| {
        if entry.is_within(path) {
            points.push(entry.mount_point());
        }
    })?;
    points.sort_by_cached_key(|point| std::cmp::Reverse(point.components().count()));
    points.dedup();
    Ok(points)
}

/// Takes away what is mounted at each of the points; the first error counts.
fn unmount_all(points: &[PathBuf]) -> Result<()> {
    let mut first: Option<(&Path, Errno)> = None;
    for point in points {
        // What is mounted above a mount that stays can only be busy.
        if first.is_some_and(|(failed, _)| failed.starts_with(point)) {
            continue;
        }
        if let Err(errno) = unmount_stack(point) {
            first = first.or(Some((point, errno)));
        }
    }
    match first {
        Some((point, errno)) => Err(Error::io(format!("unmount {}", point.display()), errno)),
        None => Ok(()),
    }
}

/// Takes away all mounts at one point, which lie on top of each other.
fn unmount_stack(point: &Path) -> Result<(), Errno> {
    loop {
        match unmount_one(point) {
            Ok(()) => {}
            // No mount is left here; or another one covers the way here, which is next.
            Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

fn unmount_one(point: &Path) -> Result<(), Errno> {
    for _ in 1..BUSY_ATTEMPTS {
        match umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
            Err(Errno::EBUSY) => std::thread::sleep(BUSY_PAUSE),
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
    umount2(point, MntFlags::UMOUNT_NOFOLLOW)
}
