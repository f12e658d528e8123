//! The file `address` of a bundle, where containerd 1.6 and 1.7 look for the shim's address. A node may come to have one of
//! these again while the container runs.

use std::{fs, path::Path};

use crate::{
    error::{Error, Result},
    files,
};

const NAME: &str = "address";
const TEMPORARY: &str = ".address";

/// Leaves the address in a bundle: the whole of it or nothing.
pub(super) fn write(bundle: &Path, address: &str) -> Result<()> {
    let (path, temporary) = (bundle.join(NAME), bundle.join(TEMPORARY));
    let written = files::write(&temporary, address.as_bytes(), 0o644);
    written.and_then(|()| fs::rename(&temporary, &path)).map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io(format!("write {}", path.display()), error)
    })
}

/// Removes what [`write()`] has left, or was about to leave when its process was killed.
pub(super) fn remove(bundle: &Path) {
    for name in [NAME, TEMPORARY] {
        let _ = fs::remove_file(bundle.join(name));
    }
}
