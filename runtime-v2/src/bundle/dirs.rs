//! Directories with exact modes: set after making them, so that no umask has a say.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use super::mounts;
use crate::error::{Error, Result};

/// Makes `path`, which must not exist.
pub(super) fn make(path: &Path, mode: u32) -> Result<()> {
    // Narrow first, so that nobody looks in before the mode is right.
    fs::DirBuilder::new()
        .mode(mode & 0o700)
        .create(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|error| Error::io(format!("make directory {}", path.display()), error))
}

/// Makes what is missing from `base` down to the parent of `leaf`, passable but not readable.
/// Directories that exist keep their modes: an administrator may have chosen them.
pub(super) fn make_parents(base: &Path, leaf: &Path) -> Result<()> {
    let missing: Vec<PathBuf> =
        leaf.ancestors().skip(1).take_while(|dir| !dir.is_dir()).map(Path::to_path_buf).collect();
    for dir in missing.iter().rev() {
        // Above `base` nothing is ours, and the conservative mode is the right one.
        let mode = if dir.starts_with(base) { 0o711 } else { 0o700 };
        match make(dir, mode) {
            Err(error) if error.kind() == runtime_proto::errdefs::Code::AlreadyExists => {}
            other => other?,
        }
    }
    Ok(())
}

/// Makes the bundle itself; root of a user namespace may pass through it by its group.
pub(super) fn make_bundle(path: &Path, gid: Option<u32>) -> Result<()> {
    make(path, 0o700)?;
    let Some(gid) = gid else { return Ok(()) };
    chown(path, None, Some(gid))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o710)))
        .map_err(|error| {
            let _ = fs::remove_dir(path);
            Error::io(format!("give {} to group {gid}", path.display()), error)
        })
}

/// Makes the work directory anew: one that is left over belongs to a container of the past.
pub(super) fn make_work(path: &Path) -> Result<()> {
    mounts::unmount_below(&[path])?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("clear work directory {}", path.display()), error))
        }
        _ => make(path, 0o711),
    }
}
