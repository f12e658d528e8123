//! Removing a bundle, without ever walking into a root file system, or into anything else that is
//! mounted there: some shims share more with a container than that.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Bundle, mounts};
use crate::error::{Error, Result};

/// A shim that is ending may just have made one more file, by a handle of the directory; under its
/// new name nobody finds it again.
const REMOVE_TRIES: u32 = 5;

/// In every bundle from its beginning.
const WORK: &str = "work";

impl Bundle {
    /// Unmounts what is mounted in it, then removes the bundle and its work directory.
    ///
    /// If something stays mounted, nothing is removed, and this can be tried again: the removal
    /// starts only after `rootfs` went by a plain rmdir, which cannot delete what is mounted.
    ///
    /// # Errors
    /// When something stays.
    pub fn remove(&self) -> Result<()> {
        let rootfs = self.path().join("rootfs");
        mounts::unmount_below(&[self.path(), &self.work])?;
        absent_is_fine(remove_plain(&rootfs))
            .map_err(|error| Error::io(format!("remove {}", rootfs.display()), error))?;
        remove_hidden(self.path())?;
        remove_hidden(&self.work)
    }

    /// Removes what a manager that was killed in the middle of [`Bundle::remove`] has left.
    ///
    /// # Errors
    /// When it stays.
    pub(crate) fn remove_leftovers(&self) -> Result<()> {
        for dir in [self.path(), &self.work] {
            let hidden = hidden(dir);
            if dir == self.path() && !was_bundle(&hidden) {
                // Somebody else's, or nothing.
                continue;
            }
            let failed = |error| Error::io(format!("remove {}", hidden.display()), error);
            mounts::unmount_below(&[&hidden])?;
            // Gone long ago; were it not, it would be a root file system.
            absent_is_fine(remove_plain(&hidden.join("rootfs"))).map_err(failed)?;
            absent_is_fine(clear(&hidden)).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes a work directory that no bundle belongs to.
    ///
    /// # Errors
    /// When it stays.
    pub(crate) fn remove_work(&self) -> Result<()> {
        mounts::unmount_below(&[&self.work])?;
        remove_hidden(&self.work)
    }
}

/// Removes a directory that has nothing in it, or a link.
fn remove_plain(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        removed => removed,
    }
}

/// Whether a hidden directory holds what only bundles hold, or no longer anything.
fn was_bundle(hidden: &Path) -> bool {
    let mut tells = [WORK, "config.json", "log", "bootstrap.json", "shim-binary-path", "end.json"]
        .iter()
        .map(|name| hidden.join(name));
    tells.any(|path| path.symlink_metadata().is_ok())
        || fs::read_dir(hidden).is_ok_and(|mut entries| entries.next().is_none())
}

/// Removes a directory with all that is in it; in a bundle, what tells that it is one comes last, so
/// that a removal that is cut off can be gone on with.
fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == WORK {
            continue;
        }
        absent_is_fine(if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        })?;
    }
    let last = dir.join(WORK);
    match absent_is_fine(fs::remove_file(&last)) {
        // Not the link of a bundle, but something in a work directory.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => fs::remove_dir_all(&last)?,
        other => other?,
    }
    fs::remove_dir(dir)
}

/// Renames a directory out of sight first, so that a half-removed one is never taken for a bundle.
fn remove_hidden(dir: &Path) -> Result<()> {
    let hidden = hidden(dir);
    let failed = |error| Error::io(format!("remove {}", dir.display()), error);
    if !dir.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        return absent_is_fine(fs::remove_file(dir)).map_err(failed);
    }
    // One that an earlier attempt left half-removed would be in the way of the rename.
    mounts::unmount_below(&[&hidden])?;
    absent_is_fine(clear(&hidden)).map_err(failed)?;
    fs::rename(dir, &hidden).map_err(failed)?;
    for _ in 1..REMOVE_TRIES {
        match absent_is_fine(clear(&hidden)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            other => return other.map_err(failed),
        }
    }
    absent_is_fine(clear(&hidden)).map_err(failed)
}

fn hidden(dir: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(dir.file_name().unwrap_or_default());
    dir.with_file_name(name)
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
