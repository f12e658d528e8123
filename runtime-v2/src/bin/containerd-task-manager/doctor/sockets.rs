//! Sockets of shims that nobody listens at.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use super::{Finding, Kind, Remedy, Scene};

/// Removing a dead socket.
#[derive(Debug)]
pub(crate) struct Removal {
    path: PathBuf,
    inode: u64,
}

impl Removal {
    /// Proves once more that nobody listens, then removes the file.
    pub(super) fn apply(self) -> Result<(), String> {
        let same = fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode);
        if !same || !refuses(&self.path) {
            return Err("it is in use again".to_owned());
        }
        fs::remove_file(&self.path).map_err(|error| error.to_string())
    }
}

/// Finds them. A directory that is not there has none.
pub(super) fn without_listener(scene: &Scene, dir: &Path) -> Vec<Finding> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().filter_map(|path| judge(scene, path)).collect()
}

fn judge(scene: &Scene, path: PathBuf) -> Option<Finding> {
    let meta = fs::symlink_metadata(&path).ok()?;
    if !meta.file_type().is_socket() || !scene.is_old(&path) || !refuses(&path) {
        return None;
    }
    let text = "nobody listens at this socket: its shim was killed";
    let removal = Removal { path: path.clone(), inode: meta.ino() };
    let finding = Finding::new(Kind::DeadSocket, path.display(), text);
    Some(finding.curable(Remedy::Socket(removal)))
}

/// Whether the kernel says that nobody listens. One whose queue is full is alive.
fn refuses(path: &Path) -> bool {
    let connected = connect(path);
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects without waiting for room in the queue of a listener that hangs.
fn connect(path: &Path) -> io::Result<UnixStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
    use std::os::fd::AsRawFd;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_without_listener_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(!refuses(&path));
        drop(listener);
        assert!(refuses(&path));
        let inode = fs::metadata(&path).unwrap().ino();
        let other = Removal { path: path.clone(), inode: inode + 1 };
        assert!(other.apply().is_err() && path.exists());
        Removal { path: path.clone(), inode }.apply().unwrap();
        assert!(!path.exists() && !refuses(&path));
    }
}
