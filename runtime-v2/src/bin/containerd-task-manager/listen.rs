//! The socket that is served.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use nix::sys::stat::{Mode, umask};

/// A bound socket; its file goes with it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Which file is ours: another process may have put its own there meanwhile.
    inode: u64,
}

impl Socket {
    /// Binds `path`. A socket there that nobody listens at is replaced; anything else is not.
    ///
    /// To be called while the process has one thread: the permissions are those of the umask for
    /// a moment, and it belongs to all threads.
    ///
    /// # Errors
    /// When the path is in use or cannot be bound.
    pub(crate) fn bind(path: &Path, mode: u32, gid: Option<u32>) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o711).create(dir)?;
        }
        remove_dead(path)?;
        let before = umask(Mode::from_bits_truncate(0o777));
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound?;
        if gid.is_some() {
            chown(path, None, gid)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        let inode = fs::symlink_metadata(path)?.ino();
        Ok(Self { listener: Some(listener), path: path.to_path_buf(), inode })
    }

    /// The listener, for the runtime. Can be taken once.
    ///
    /// # Errors
    /// When it cannot be registered.
    pub(crate) fn listener(&mut self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.take().ok_or(io::ErrorKind::NotConnected)?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }

    /// Removes the file, so that nobody new comes.
    pub(crate) fn unlink(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            // If it stays, the next start finds nobody listening and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.unlink();
    }
}

fn remove_dead(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is no socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_private_and_replaced_only_when_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d/s");
        let socket = Socket::bind(&path, 0o600, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Socket::bind(&path, 0o600, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        drop(Socket::bind(&path, 0o660, None).unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(Socket::bind(&path, 0o600, None).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn the_file_of_a_successor_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let old = Socket::bind(&path, 0o600, None).unwrap();
        fs::rename(&path, dir.path().join("moved")).unwrap();
        let _new = Socket::bind(&path, 0o600, None).unwrap();
        drop(old);
        assert!(path.exists());
    }
}
