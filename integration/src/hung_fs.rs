//! A filesystem whose server stops answering, as one on a network does when the network is gone.
//!
//! It is one of FUSE: a directory with one directory in it, `sub`. As long as it answers, things can be mounted on both;
//! afterwards, whoever has to walk through it hangs, beyond any signal.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::failure::{Context, Result};

/// Larger than any request (FUSE_MIN_READ_BUFFER is 8 KiB).
const REQUEST: usize = 64 << 10;
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;
const ENOSYS: i32 = 38;
/// A directory that anybody may enter.
const MODE: u32 = 0o040_755;

/// The filesystem. When it is dropped, it fails for all who hang in it, and is taken away.
#[derive(Debug)]
pub struct HungFs {
    at: PathBuf,
    silent: Arc<AtomicBool>,
    /// The server ends when this is dropped, and its connection to the kernel with it, which ends the filesystem.
    life: Option<PipeWriter>,
    server: Option<JoinHandle<()>>,
}

impl HungFs {
    /// Mounts it on a directory. It answers until [`Self::hang`].
    ///
    /// # Errors
    /// When this kernel has no FUSE.
    pub fn mount(at: &Path) -> Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.context("opening /dev/fuse")?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("hung"), at, Some("fuse"), MsFlags::empty(), Some(data.as_str()))
            .context(format!("mounting on {}", at.display()))?;
        let (end, life) = std::io::pipe()?;
        let silent = Arc::new(AtomicBool::new(false));
        let quiet = Arc::clone(&silent);
        let server = std::thread::spawn(move || serve(&device, &quiet, &end));
        Ok(Self { at: at.to_path_buf(), silent, life: Some(life), server: Some(server) })
    }

    /// Takes requests, and answers none of them any more.
    pub fn hang(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }
}

impl Drop for HungFs {
    fn drop(&mut self) {
        drop(self.life.take());
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        while umount2(&self.at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_ok() {}
    }
}

/// Bytes of integers, one after the other, as the kernel has them in its structures.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u64(mut self, numbers: &[u64]) -> Self {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    fn u32(mut self, numbers: &[u32]) -> Self {
        self.0.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        self
    }

    /// `struct fuse_attr` of a directory.
    fn directory(self, inode: u64) -> Self {
        self.u64(&[inode, 0, 0, 0, 0, 0]).u32(&[0, 0, 0, MODE, 2, 0, 0, 0, 4096, 0])
    }
}

fn serve(mut device: &File, silent: &AtomicBool, end: &PipeReader) {
    let mut request = vec![0; REQUEST];
    loop {
        let mut ready = [
            PollFd::new(device.as_fd(), PollFlags::POLLIN),
            PollFd::new(end.as_fd(), PollFlags::empty()),
        ];
        if poll(&mut ready, PollTimeout::NONE).is_err()
            || ready[1].revents().is_some_and(|it| !it.is_empty())
        {
            return;
        }
        let Ok(length) = device.read(&mut request) else { return };
        let head = request.get(..length.min(24)).unwrap_or_default();
        let (Some(opcode), Some(unique), Some(node)) =
            (number(head, 4, 4), number(head, 8, 8), number(head, 16, 8))
        else {
            return;
        };
        let opcode = u32::try_from(opcode).unwrap_or_default();
        if silent.load(Ordering::Relaxed) || matches!(opcode, FORGET | BATCH_FORGET) {
            continue;
        }
        let (error, body) = answer(opcode, node);
        let length = u32::try_from(16 + body.len()).unwrap_or_default();
        let error = (-error).cast_unsigned();
        let mut response = Bytes::default().u32(&[length, error]).u64(&[unique]).0;
        response.extend(body);
        if device.write_all(&response).is_err() {
            return;
        }
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut whole = [0; 8];
    // The kernel's order is that of this machine; the tests run where that is little endian.
    whole.get_mut(..length)?.copy_from_slice(bytes.get(at..at + length)?);
    Some(u64::from_le_bytes(whole))
}

/// The error and the body that answer a request for a node.
fn answer(opcode: u32, node: u64) -> (i32, Vec<u8>) {
    let body = match opcode {
        // Version 7.31, and a write size; everything else as little as can be.
        INIT => Bytes::default().u32(&[7, 31, 0, 0, 0, 4096, 1, 1]).u32(&[0; 8]),
        GETATTR => Bytes::default().u64(&[0]).u32(&[0, 0]).directory(node),
        // Valid for no time: it is asked for whenever somebody passes.
        LOOKUP => Bytes::default().u64(&[2, 0, 0, 0]).u32(&[0, 0]).directory(2),
        _ => return (ENOSYS, Vec::new()),
    };
    (0, body.0)
}
