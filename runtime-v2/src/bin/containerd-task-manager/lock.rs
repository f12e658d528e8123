//! One manager per state directory: two would both clean up what the other has just made.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// Beside the bundles; no identifier begins with a dot, so it is none.
const NAME: &str = ".lock";

/// The claim on a state directory. The kernel gives it back when the process ends, however.
#[derive(Debug)]
pub(crate) struct StateLock {
    _file: Flock<File>,
}

impl StateLock {
    /// Claims `state`, which is made if it is not there.
    ///
    /// # Errors
    /// When another process has claimed it, with its pid.
    pub(crate) fn take(state: &Path) -> io::Result<Self> {
        if let Some(parent) = state.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
        }
        match DirBuilder::new().mode(0o711).create(state) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = state.join(NAME);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
            .open(&path)?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => locked,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let text = format!("{} is used by process {}", state.display(), holder.trim());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err((_, errno)) => return Err(errno.into()),
        };
        file.set_len(0)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_manager_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        let first = StateLock::take(&state).unwrap();
        let refused = StateLock::take(&state).unwrap_err().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        drop(first);
        StateLock::take(&state).unwrap();
    }
}
