//! The socket of a group of containers: its name, and who binds it.
//!
//! Whoever binds the socket first is the shim of the group. Looking who has it, removing one that
//! nobody listens on, and binding are one step for everybody else: they happen under a lock of the
//! directory. The lock is not needed to use a socket, so shims of another make do not miss it.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Component, Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use runtime_proto::errdefs::Code;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Where sockets are unless containerd names another place; also where ctr looks for them.
pub const DEFAULT_DIR: &str = "/run/containerd/s";
/// The longest path of a socket, in bytes: `sun_path` without its final NUL.
pub const MAX_PATH: usize = 107;

/// How long the lock of the directory is waited for, and how long between attempts to get it.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_micros(500);

/// How often a socket that was there and is gone is looked for again. Once is what a shim that
/// ends takes; more can only come from shims of another make, which do not know of the lock.
const MAX_ROUNDS: u32 = 1000;

/// A bound socket.
#[derive(Debug)]
pub struct Bound {
    /// Listening.
    pub listener: UnixListener,
    /// Its file.
    pub file: SocketFile,
}

/// What there is at the address of a group.
#[derive(Debug)]
pub enum Group {
    /// Nothing was; now our socket is.
    New(Bound),
    /// A shim that listens.
    Existing(UnixStream),
}

/// A socket's file, removed by whoever bound it and by nobody else.
#[derive(Debug, Clone)]
pub struct SocketFile {
    path: PathBuf,
    /// Device, inode, and time of binding, since inode numbers are used again.
    identity: Option<(u64, u64, i64, i64)>,
}

impl SocketFile {
    /// The file at `path`, as it is now.
    pub fn at(path: PathBuf) -> Self {
        let identity = fs::symlink_metadata(&path)
            .ok()
            .map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()));
        Self { path, identity }
    }

    /// Removes the file, if it is still the same one.
    pub fn remove(&self) {
        let now = Self::at(self.path.clone()).identity;
        if self.identity.is_some() && now == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The path of the socket for a group: one name per containerd, namespace and group, of one
/// length whatever theirs.
///
/// # Errors
/// When the directory is too long for a socket, or no absolute path; when the group would have the socket of another
/// namespace's.
pub fn path(dir: &Path, address: &str, namespace: &str, group: &str) -> Result<PathBuf> {
    let name = clean(Path::new(address).join(namespace).join(group.trim_start_matches('/')));
    let digest = Sha256::digest(name.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join(hex);
    let length = path.as_os_str().len();
    if Path::new(group).components().any(|part| part == Component::ParentDir) {
        let message = format!("group {group:?} leads out of its namespace");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if !dir.is_absolute() {
        let message = format!("socket directory {} is no absolute path", dir.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if length > MAX_PATH {
        let message = format!(
            "socket directory {} is too long: sockets in it have paths of {length} bytes, the \
             limit is {MAX_PATH}",
            dir.display()
        );
        return Err(Error::new(Code::InvalidArgument, message));
    }
    Ok(path)
}

/// A path without `.` and `..`, by its text alone, as Go's filepath.Clean has it.
fn clean(path: PathBuf) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if !clean.pop() && !path.is_absolute() {
                    clean.push("..");
                }
            }
            other => clean.push(other),
        }
    }
    clean
}

/// Binds the socket at `path`, or connects to the shim that has it.
///
/// # Errors
/// When the directory cannot be made or the socket not be bound; the path is named.
pub fn bind_or_connect(path: &Path) -> Result<Group> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    make_dir(dir).map_err(|error| Error::io(format!("make {}", dir.display()), error))?;
    let _lock = lock(dir).map_err(|error| Error::io(format!("lock {}", dir.display()), error))?;
    let failed = |error| Error::io(format!("listen on {}", path.display()), error);
    let mut rounds = 0..MAX_ROUNDS;
    loop {
        match bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            // A shim that was ending has taken our new file for its own, and removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound && rounds.next().is_some() => {
                continue;
            }
            bound => return bound.map(Group::New).map_err(failed),
        }
        let refused = match connect(path) {
            Ok(stream) => return Ok(Group::Existing(stream)),
            Err(error) => error,
        };
        let gone = match refused.kind() {
            // Left by a shim that was killed.
            io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            // Its shim, which was ending, has removed it just now.
            io::ErrorKind::NotFound => Ok(()),
            _ => return Err(failed(refused)),
        };
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ if rounds.next().is_none() => return Err(failed(refused)),
            _ => {}
        }
    }
}

/// Locks a directory for those who bind sockets in it. They hold it for milliseconds; where one was stopped meanwhile, it
/// is done without, as by shims of another make: nobody shall keep all others of a node from starting.
fn lock(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let deadline = Instant::now() + LOCK_LIMIT;
    let mut file = File::open(dir)?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(Some(locked)),
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
            Err((_, errno)) => return Err(errno.into()),
        };
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(LOCK_PAUSE);
    }
}

/// Connects at once or not at all: a shim that has stopped accepting keeps its queue full for ever,
/// and whoever waits here holds the lock that every start on the node needs.
fn connect(path: &Path) -> io::Result<UnixStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Binds a socket that only we can connect to.
///
/// # Errors
/// As bind(2), listen(2) and chmod(2).
pub fn bind(path: &Path) -> io::Result<Bound> {
    let listener = UnixListener::bind(path)?;
    let file = SocketFile::at(path.to_owned());
    // Until here the directory and the check of peers keep others out.
    if let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
        file.remove();
        return Err(error);
    }
    Ok(Bound { listener, file })
}

/// Makes the directory for sockets, for us alone; one that is there is left as it is.
fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        // Whatever the umask is, we must be able to use it.
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o700)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_containerd() {
        // sha256 of "/run/containerd/containerd.sock/default/c1".
        let path = path(Path::new(DEFAULT_DIR), "/run/containerd/containerd.sock", "default", "c1");
        let path = path.unwrap();
        let want = Sha256::digest(b"/run/containerd/containerd.sock/default/c1");
        let want: String = want.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(path, Path::new(DEFAULT_DIR).join(want));
        assert_eq!(clean("/a/./b/../c//d/".into()), Path::new("/a/c/d"));
        assert_eq!(clean("a/../..".into()), Path::new(".."));
    }

    #[test]
    fn long_ids_have_short_sockets_and_long_directories_have_a_limit() {
        let (namespace, id) = ("n".repeat(76), "i".repeat(76));
        let fits = path(Path::new("/run/containerd/s"), "/run/c.sock", &namespace, &id).unwrap();
        assert_eq!(fits.as_os_str().len(), "/run/containerd/s/".len() + 64);
        let dir = format!("/{}", "d".repeat(42));
        let error = path(Path::new(&dir), "/run/c.sock", "n", "i").unwrap_err();
        assert!(error.to_string().contains("107") && error.to_string().contains(&dir), "{error}");
        assert!(path(Path::new("rel"), "", "n", "i").is_err());
    }

    #[test]
    fn no_group_has_the_socket_of_another_namespaces() {
        let path = |namespace, group| path(Path::new(DEFAULT_DIR), "/run/c.sock", namespace, group);
        for group in ["../other/g", "..", "a/../../other/g"] {
            let error = path("n", group).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{group}");
        }
        assert_ne!(path("n", "a..b").unwrap(), path("n", "a/b").unwrap());
    }

    #[test]
    fn a_starter_that_was_stopped_with_the_lock_keeps_nobody_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let stopped = File::open(dir.path()).unwrap();
        let _stopped = Flock::lock(stopped, FlockArg::LockExclusiveNonblock).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let path = dir.path().join("sock");
        thread::spawn(move || sender.send(bind_or_connect(&path)));
        let bound = receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for the lock");
        assert!(matches!(bound.unwrap(), Group::New(_)));
    }

    #[test]
    fn a_group_has_one_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/dir/sock");
        let Group::New(bound) = bind_or_connect(&path).unwrap() else { panic!("not bound") };
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let parent = fs::metadata(path.parent().unwrap()).unwrap();
        assert_eq!(parent.permissions().mode() & 0o777, 0o700);
        assert!(matches!(bind_or_connect(&path).unwrap(), Group::Existing(_)));
        drop(bound.listener);
        // The clock that files are stamped with has moved on.
        let bound_at = fs::metadata(&path).unwrap().modified().unwrap();
        let clock = dir.path().join("clock");
        let now = || {
            fs::write(&clock, "").unwrap();
            fs::metadata(&clock).unwrap().modified().unwrap()
        };
        while now() <= bound_at {}
        // Nobody listens any more: the next one takes its place, and the first leaves it alone.
        let Group::New(second) = bind_or_connect(&path).unwrap() else { panic!("not bound") };
        bound.file.remove();
        assert!(path.exists());
        second.file.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_its_shim_removes_meanwhile_is_bound_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        // Shims that end, one after the other: they remove their file without the lock.
        let ending = std::thread::spawn({
            let path = path.clone();
            move || {
                for _ in 0..2000 {
                    if let Ok(bound) = bind(&path) {
                        bound.file.remove();
                    }
                }
            }
        });
        while !ending.is_finished() {
            if let Group::New(bound) = bind_or_connect(&path).unwrap() {
                bound.file.remove();
            }
        }
        ending.join().unwrap();
    }

    #[test]
    fn a_shim_that_does_not_accept_is_not_waited_for() {
        use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let wedged =
            socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        socket::bind(wedged.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        socket::listen(&wedged, Backlog::new(0).unwrap()).unwrap();
        let mut queued = Vec::new();
        let error = loop {
            match bind_or_connect(&path) {
                Ok(Group::Existing(stream)) => queued.push(stream),
                Ok(Group::New(_)) => panic!("took over a socket that somebody listens on"),
                Err(error) => break error,
            }
            assert!(queued.len() < 100, "the queue has no end");
        };
        assert!(error.to_string().contains("sock"), "{error}");
    }
}
