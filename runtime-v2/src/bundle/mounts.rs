//! Unmounting everything at and below directories.

use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};

use crate::error::{Error, Result};

/// A mount can be busy for a moment after its last user has ended; twenty of these are one second.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const BUSY_TRIES: u32 = 20;

/// Unmounts all at and below `dirs`, the deepest and latest first. What a link by one of these
/// names leads to is not below it.
///
/// # Errors
/// When something stays mounted, or when it cannot be known that nothing is.
pub(super) fn unmount_below(dirs: &[&Path]) -> Result<()> {
    // A directory that does not exist has no mounts.
    let dirs: Vec<PathBuf> = dirs.iter().filter_map(|dir| place(dir)).collect();
    if dirs.is_empty() {
        return Ok(());
    }
    let table = fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::io("read /proc/self/mountinfo", error))?;
    for target in targets_below(&table, &dirs) {
        unmount(&target)?;
    }
    Ok(())
}

/// A directory as the table of mounts names it; none if there is no such.
fn place(dir: &Path) -> Option<PathBuf> {
    let is_dir = dir.symlink_metadata().ok()?.is_dir();
    is_dir.then(|| Some(dir.parent()?.canonicalize().ok()?.join(dir.file_name()?))).flatten()
}

fn unmount(target: &Path) -> Result<()> {
    for _ in 1..BUSY_TRIES {
        match umount2(target, MntFlags::UMOUNT_NOFOLLOW) {
            Err(Errno::EBUSY) => thread::sleep(BUSY_PAUSE),
            other => return finish(target, other),
        }
    }
    finish(target, umount2(target, MntFlags::UMOUNT_NOFOLLOW))
}

fn finish(target: &Path, result: nix::Result<()>) -> Result<()> {
    match result {
        // Not mounted any more: somebody else was faster, the shim as a rule.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(error) => Err(Error::io(format!("unmount {}", target.display()), error)),
    }
}

/// Mount points at and below `dirs`, in the order to unmount them: the table lists a mount after
/// what it is mounted on, so its reverse is that order.
fn targets_below(table: &[u8], dirs: &[PathBuf]) -> Vec<PathBuf> {
    table
        .split(|byte| *byte == b'\n')
        .rev()
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescape)
        .filter(|target| dirs.iter().any(|dir| target.starts_with(dir)))
        .collect()
}

/// The table writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| byte == b'\\' && is_octal(digits));
        if let Some(digits) = octal {
            path.push(digits.iter().fold(0u8, |value, digit| (value << 3) | (digit & 7)));
            rest = &tail[3..];
        } else {
            path.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

fn is_octal(digits: &[u8]) -> bool {
    digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) && digits.first() <= Some(&b'3')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_mount_below_comes_first_and_neighbours_are_left_alone() {
        let table = b"1 0 0:1 / / rw - ext4 /dev/a rw\n\
            2 1 0:2 / /s/rootfs rw - overlay overlay rw\n\
            3 2 0:3 / /s/rootfs/a\\040b rw - tmpfs tmpfs rw\n\
            4 1 0:4 / /s/rootfs2 rw - tmpfs tmpfs rw\n\
            5 2 0:5 / /s/rootfs rw - tmpfs tmpfs rw\n";
        let targets = targets_below(table, &["/s/rootfs".into()]);
        assert_eq!(targets, ["/s/rootfs", "/s/rootfs/a b", "/s/rootfs"].map(PathBuf::from));
    }

    #[test]
    fn escapes_are_undone_and_anything_else_stays() {
        assert_eq!(unescape(b"/a\\134b\\012"), Path::new("/a\\b\n"));
        assert_eq!(unescape(b"/a\\9\\04"), Path::new("/a\\9\\04"));
        assert_eq!(unescape(b"\\777"), Path::new("\\777"));
    }
}
