//! Terminals: the socket over which an OCI runtime hands over a pty master, and the window size.

#![expect(unsafe_code, reason = "received descriptors are adopted; TIOCSWINSZ has no safe wrapper")]

use std::{
    env, fs,
    io::{self, IoSliceMut},
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    cmsg_space,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg},
        termios::tcgetattr,
    },
    unistd::mkdtemp,
};
use runtime_proto::errdefs::Code;
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
    time::timeout,
};

use super::pipe::set_nonblocking;
use crate::error::{Error, Result};

/// How long a master may take after the OCI runtime has come back. It was sent before that, so the
/// wait is none, unless the runtime never sent one.
const MASTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Room for as many descriptors as one message can carry (`SCM_MAX_FD`): what does not fit would be
/// cut off, and what came before the cut would be installed and known to nobody.
const MAX_DESCRIPTORS: usize = 253;

/// Longest name of the other end of a pty that is read along with it.
const MAX_NAME: usize = 4096;

/// A listening socket in a directory that only this user can enter; both go with the value.
#[derive(Debug)]
pub(super) struct ConsoleSocket {
    listener: UnixListener,
    directory: PrivateDirectory,
}

#[derive(Debug)]
struct PrivateDirectory(PathBuf);

/// The size of a terminal, in characters as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    width: u16,
    height: u16,
}

impl Size {
    /// From a request.
    ///
    /// # Errors
    /// InvalidArgument for more than the kernel can count.
    pub fn of(width: u32, height: u32) -> Result<Self> {
        let cells = |name: &str, count: u32| {
            u16::try_from(count).map_err(|_| {
                let context = format!("{name} {count} of a terminal is above {}", u16::MAX);
                Error::new(Code::InvalidArgument, context)
            })
        };
        Ok(Self { width: cells("width", width)?, height: cells("height", height)? })
    }
}

nix::ioctl_write_ptr_bad!(set_window_size, libc::TIOCSWINSZ, libc::winsize);

impl ConsoleSocket {
    /// Must be called inside the runtime.
    pub(super) fn bind() -> Result<Self> {
        // The runtime directory may be another user's, gone, or too long for a socket's name.
        let runtime_dir = env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
        runtime_dir
            .and_then(|parent| Self::bind_in(Path::new(&parent)).ok())
            .map_or_else(|| Self::bind_in(&env::temp_dir()), Ok)
    }

    fn bind_in(parent: &Path) -> Result<Self> {
        let directory = mkdtemp(&parent.join("shim-console-XXXXXX"))
            .map_err(|errno| Error::io("make console socket directory", io::Error::from(errno)))?;
        let directory = PrivateDirectory(directory);
        let listener = UnixListener::bind(directory.socket())
            .map_err(|error| Error::io("bind console socket", error))?;
        Ok(Self { listener, directory })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.socket()
    }

    /// The master that the OCI runtime sent, non-blocking.
    pub(super) async fn receive(self) -> Result<OwnedFd> {
        let late = |_| Error::new(Code::DeadlineExceeded, "the OCI runtime sent no terminal");
        let master = timeout(MASTER_TIMEOUT, self.accept_master()).await.map_err(late)??;
        set_nonblocking(&master)?;
        Ok(master)
    }

    async fn accept_master(&self) -> Result<OwnedFd> {
        let (stream, _) = self
            .listener
            .accept()
            .await
            .map_err(|error| Error::io("accept on console socket", error))?;
        let mut received = stream
            .async_io(Interest::READABLE, || receive_descriptors(&stream))
            .await
            .map_err(|error| Error::io("receive terminal", error))?;
        let (Some(master), None) = (received.pop(), received.pop()) else {
            return Err(Error::new(
                Code::Internal,
                "the OCI runtime sent no or several descriptors as terminal",
            ));
        };
        tcgetattr(&master).map_err(|errno| {
            Error::caused(
                Code::Internal,
                "the OCI runtime sent something else than a terminal",
                errno,
            )
        })?;
        Ok(master)
    }
}

impl PrivateDirectory {
    fn socket(&self) -> PathBuf {
        self.0.join("console.sock")
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // Nobody is left to tell, and an empty directory in the runtime directory harms nobody.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_dir(&self.0);
    }
}

/// One message, with every descriptor in it owned at once so that none leaks.
fn receive_descriptors(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut name = [0; MAX_NAME];
    let mut slices = [IoSliceMut::new(&mut name)];
    let mut space = cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<UnixAddr>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                // SAFETY: the kernel has just installed this descriptor for us in recvmsg(2), so it
                // is open and nothing else in the process owns it.
                received.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    Ok(received)
}

/// Tells the terminal its size, and the processes on it that it changed.
pub(super) fn resize(master: &OwnedFd, size: Size) -> Result<()> {
    let size =
        libc::winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is borrowed for the call, and TIOCSWINSZ only reads the structure.
    let result = unsafe { set_window_size(master.as_fd().as_raw_fd(), &raw const size) };
    result.map_err(|errno| Error::io("resize terminal", io::Error::from(errno)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_what_the_kernel_can_count() {
        for (width, height) in [(0, 0), (80, 24), (65_535, 65_535)] {
            assert!(Size::of(width, height).is_ok(), "{width} by {height}");
        }
        for (width, height, sentence) in [
            (65_536, 24, "width 65536 of a terminal is above 65535"),
            (80, u32::MAX, "height 4294967295 of a terminal is above 65535"),
        ] {
            let error = Size::of(width, height).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert_eq!(error.to_string(), sentence);
        }
    }
}
