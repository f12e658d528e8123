//! The addresses shims have had over the years, and connecting to them.
//!
//! | form | meaning |
//! |---|---|
//! | `unix:///path` | a socket in the file system, the rule |
//! | `/path` or `name` | an abstract socket of an old shim, or a socket file by that path |
//! | `vsock://cid:port` | a shim inside a virtual machine |
//! | `hvsock://path:port` | the same, behind the socket of its VMM, with a handshake |

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, socket};
use runtime_proto::errdefs::Code;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{Instant, sleep, timeout_at},
};

use crate::error::{Error, Result};

/// How long to wait between tries, where trying again makes sense.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The longest line a VMM answers a handshake with.
const MAX_HANDSHAKE: usize = 64;

/// Where a shim listens.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Unix(PathBuf),
    Abstract(String),
    Vsock { cid: u32, port: u32 },
    HybridVsock { path: PathBuf, port: u32 },
}

/// Connects to `address` within `limit`.
///
/// A socket file that is missing or that nobody listens on fails at once: a shim listens before
/// its address is known, so it can only be dead. What can pass is waited for: a full queue of
/// connections, and a virtual machine that is still booting.
///
/// # Errors
/// `InvalidArgument` for an address of no known form, `NotFound` and `Unavailable` for a dead
/// socket, `DeadlineExceeded` otherwise.
pub(crate) async fn dial(address: &str, limit: Duration) -> Result<UnixStream> {
    let parsed = parse(address)?;
    let deadline = Instant::now() + limit;
    loop {
        let failure = match timeout_at(deadline, attempt(&parsed)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        if !may_pass(&parsed, &failure) || Instant::now() + RETRY_PAUSE >= deadline {
            return Err(Error::io(format!("connect to shim at {address}"), failure));
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// The socket file of an address, for whoever cleans up behind a shim that cannot.
pub(crate) fn socket_file(address: &str) -> Option<PathBuf> {
    match parse(address) {
        Ok(Address::Unix(path)) => Some(path),
        _ => None,
    }
}

/// The name of an address's socket as `/proc/net/unix` lists it.
pub(crate) fn listed_name(address: &str) -> Option<String> {
    match parse(address).ok()? {
        Address::Unix(path) => Some(path.to_str()?.to_owned()),
        Address::Abstract(name) => Some(format!("@{name}")),
        Address::Vsock { .. } | Address::HybridVsock { .. } => None,
    }
}

/// One name for what is the same socket file, however it is spelled: with and without a scheme, by whatever links. An address that
/// is no path of a file there stays as it is.
pub(crate) fn identity(address: &str) -> String {
    let path = Path::new(address.strip_prefix("unix://").unwrap_or(address));
    let resolved = || {
        let (dir, name) = (path.parent()?.canonicalize().ok()?, path.file_name()?);
        Some(dir.join(name).to_str()?.to_owned())
    };
    let file = path.is_absolute().then(resolved).flatten();
    file.unwrap_or_else(|| address.to_owned())
}

fn parse(address: &str) -> Result<Address> {
    let invalid =
        || Error::new(Code::InvalidArgument, format!("shim address {address:?} has no known form"));
    let Some((scheme, rest)) = address.split_once("://") else {
        let path = Path::new(address);
        let is_socket = || path.metadata().is_ok_and(|meta| meta.file_type().is_socket());
        return Ok(if path.is_absolute() && is_socket() {
            Address::Unix(path.into())
        } else {
            Address::Abstract(address.into())
        });
    };
    let with_port = || {
        let (place, port) = rest.rsplit_once(':')?;
        Some((place, port.parse().ok()?))
    };
    match scheme {
        "unix" if rest.starts_with('/') => Ok(Address::Unix(rest.into())),
        "vsock" => {
            let (cid, port) = with_port().ok_or_else(invalid)?;
            Ok(Address::Vsock { cid: cid.parse().map_err(|_| invalid())?, port })
        }
        "hvsock" => {
            let (path, port) = with_port().ok_or_else(invalid)?;
            Ok(Address::HybridVsock { path: path.into(), port })
        }
        _ => Err(invalid()),
    }
}

/// Whether trying again can help.
fn may_pass(address: &Address, error: &io::Error) -> bool {
    match address {
        Address::Unix(_) | Address::Abstract(_) => error.kind() == io::ErrorKind::WouldBlock,
        Address::Vsock { .. } | Address::HybridVsock { .. } => {
            error.kind() != io::ErrorKind::PermissionDenied
        }
    }
}

async fn attempt(address: &Address) -> io::Result<UnixStream> {
    match address {
        Address::Unix(path) => UnixStream::connect(path).await,
        Address::Abstract(name) => UnixStream::connect(format!("\0{name}")).await,
        Address::Vsock { cid, port } => {
            let (cid, port) = (*cid, *port);
            tokio::task::spawn_blocking(move || connect_vsock(cid, port))
                .await
                .map_err(io::Error::other)?
                .and_then(into_stream)
        }
        Address::HybridVsock { path, port } => connect_hybrid(path, *port).await,
    }
}

fn connect_vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    connect(fd.as_raw_fd(), &VsockAddr::new(cid, port))?;
    Ok(fd)
}

/// A connected stream socket of any family. Only the name of the type says Unix: it reads, writes
/// and polls a descriptor, and this crate asks it for nothing else.
fn into_stream(fd: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

async fn connect_hybrid(path: &Path, port: u32) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await?;
    let mut line = Vec::new();
    // Byte by byte, since what follows the line belongs to the shim.
    while line.last() != Some(&b'\n') {
        if line.len() == MAX_HANDSHAKE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        line.push(stream.read_u8().await?);
    }
    if line.starts_with(b"OK") { Ok(stream) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    /// Upper bound for things that must happen; only a hang meets it.
    const HANG: Duration = Duration::from_secs(20);

    #[test]
    fn every_form_is_told_apart() {
        let vsock = Address::Vsock { cid: 3, port: 1024 };
        let hybrid = Address::HybridVsock { path: "/run/vm.sock".into(), port: 1024 };
        let known = [
            ("unix:///run/s/x", Address::Unix("/run/s/x".into())),
            ("/containerd-shim/a", Address::Abstract("/containerd-shim/a".into())),
            ("vsock://3:1024", vsock),
            ("hvsock:///run/vm.sock:1024", hybrid),
        ];
        for (text, address) in known {
            assert_eq!(parse(text).unwrap(), address);
        }
        for bad in ["tcp://1.2.3.4:5", "vsock://x:1", "vsock://3", "hvsock:///a", "unix://rel"] {
            assert_eq!(parse(bad).unwrap_err().kind(), Code::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn a_socket_has_one_identity_however_it_is_spelled() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let plain = dir.join("s").to_str().unwrap().to_owned();
        for spelled in [
            format!("unix://{plain}"),
            plain.clone(),
            format!("unix://{}//./s", dir.display()),
            format!("unix://{}/s", link.display()),
        ] {
            assert_eq!(identity(&spelled), plain, "{spelled}");
        }
        assert_ne!(identity(&format!("{plain}2")), plain);
        for other in ["/no-such-directory/abstract", "vsock://3:1024", "hvsock:///a:1", "name", "/"]
        {
            assert_eq!(identity(other), other);
        }
    }

    #[tokio::test]
    async fn dead_sockets_fail_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address = format!("unix://{}", path.display());
        // With this limit, a retry would hang the test.
        let forever = Duration::from_secs(3600);
        let missing = tokio::time::timeout(HANG, dial(&address, forever)).await.unwrap();
        assert_eq!(missing.unwrap_err().kind(), Code::NotFound);
        drop(UnixListener::bind(&path).unwrap());
        let refused = tokio::time::timeout(HANG, dial(&address, forever)).await.unwrap();
        assert_eq!(refused.unwrap_err().kind(), Code::Unavailable);
    }

    #[tokio::test]
    async fn abstract_names_and_bare_paths_are_reached() {
        let name = format!("runtime-v2-test-{}", std::process::id());
        let _abstract = UnixListener::bind(format!("\0{name}")).unwrap();
        dial(&name, HANG).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _bare = UnixListener::bind(&path).unwrap();
        dial(path.to_str().unwrap(), HANG).await.unwrap();
    }

    #[tokio::test]
    async fn a_full_queue_is_waited_for_until_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        nix::sys::socket::bind(
            listener.as_raw_fd(),
            &nix::sys::socket::UnixAddr::new(&path).unwrap(),
        )
        .unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
        let address = format!("unix://{}", path.display());
        let mut held = Vec::new();
        let error = loop {
            match dial(&address, Duration::from_millis(100)).await {
                Ok(stream) => held.push(stream),
                Err(error) => break error,
            }
            assert!(held.len() < 1000);
        };
        assert!(error.to_string().contains(&address), "{error}");
    }

    #[tokio::test]
    async fn the_handshake_of_a_vmm_is_spoken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vm");
        let listener = UnixListener::bind(&path).unwrap();
        let vmm = tokio::spawn(async move {
            // Not up yet: closes without an answer, and is asked again.
            drop(listener.accept().await.unwrap());
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 13];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(b"OK 77\nfirst bytes").await.unwrap();
            request
        });
        let address = format!("hvsock://{}:1024", path.display());
        let mut stream = dial(&address, HANG).await.unwrap();
        let mut bytes = [0; 11];
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"first bytes");
        assert_eq!(&vmm.await.unwrap(), b"CONNECT 1024\n");
    }
}
