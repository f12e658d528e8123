//! Removing the socket of a shim that ended without doing so.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path, time::Duration};

use crate::address;

/// A socket that accepts is alive; one that does not answer at all is not ours to judge.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// A process that has closed one connection may be a moment from closing its listener, and one that
/// was killed gets to that when the scheduler lets it: three seconds of tries.
const ENDING_PAUSE: Duration = Duration::from_millis(10);
const ENDING_TRIES: u32 = 300;

/// Removes the socket file of the address of a shim that has ended, or is about to.
pub(crate) async fn remove_of_ended(address: &str) {
    if let Some(path) = address::socket_file(address) {
        remove_once_dead(&path).await;
    }
}

/// Removes a socket file whose process has ended, or is about to: one that was killed closes its
/// descriptors after it has ceased to look like itself.
pub(crate) async fn remove_once_dead(path: &Path) {
    for _ in 0..ENDING_TRIES {
        if remove_if_dead(path).await {
            return;
        }
        tokio::time::sleep(ENDING_PAUSE).await;
    }
}

/// Removes the socket file of an address if nobody listens on it now.
pub(crate) async fn remove_of_dead(address: &str) {
    if let Some(path) = address::socket_file(address) {
        remove_if_dead(&path).await;
    }
}

/// Removes a socket file if nobody listens on it; tells whether it is gone.
///
/// The next container of a group may bind the same name at any moment. So the file is moved aside
/// first, and removed only if what was moved is what refused the connection.
pub(crate) async fn remove_if_dead(path: &Path) -> bool {
    let Some(inode) = inode(path) else { return true };
    let probe = tokio::time::timeout(PROBE_TIMEOUT, tokio::net::UnixStream::connect(path)).await;
    match probe {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            if let Err(error) = remove_exactly(path, inode) {
                tracing::debug!(path = %path.display(), %error, "a dead socket stays");
            }
            true
        }
        Ok(Err(error)) => error.kind() == io::ErrorKind::NotFound,
        Ok(Ok(_)) | Err(_) => false,
    }
}

fn remove_exactly(path: &Path, wanted: u64) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".dead");
    let aside = path.with_file_name(name);
    fs::rename(path, &aside)?;
    if inode(&aside) == Some(wanted) {
        return fs::remove_file(&aside);
    }
    // Somebody has bound the name in between: give it back, unless it was taken once more.
    fs::hard_link(&aside, path)?;
    fs::remove_file(&aside)
}

fn inode(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|meta| meta.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn only_a_socket_nobody_listens_on_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        remove_if_dead(&path).await;
        assert!(path.exists());
        drop(listener);
        remove_if_dead(&path).await;
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        remove_if_dead(&path).await;
    }

    #[test]
    fn a_name_that_was_bound_anew_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        remove_exactly(&path, 0).unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
    }
}
