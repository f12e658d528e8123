//! Making a block device of a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::syscall;

/// How often another process may be faster in taking the device that the kernel called free.
const MAX_ATTEMPTS: usize = 100;

/// A loop device. The kernel frees it when it is neither held nor mounted any more.
#[derive(Debug)]
pub(super) struct LoopDevice {
    /// The device node.
    pub(super) path: PathBuf,
    _held: File,
}

impl LoopDevice {
    /// Backs a free device with `file`.
    pub(super) fn of(file: &Path, read_only: bool) -> io::Result<Self> {
        let open = |path: &Path| OpenOptions::new().read(true).write(!read_only).open(path);
        let backing = open(file)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..MAX_ATTEMPTS {
            let number = syscall::free_loop_device(control.as_fd())?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            let (name, read_only) = (file.as_os_str().as_bytes(), read_only);
            match syscall::back_loop_device(device.as_fd(), backing.as_fd(), read_only, name) {
                Ok(()) => return Ok(Self { path, _held: device }),
                Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from(Errno::EBUSY))
    }
}
