//! A file the client named, looked up once so that what was checked is what gets opened.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use runtime_proto::errdefs::Code;

use crate::error::{Error, Result};

/// An `O_PATH` handle: finding a fifo this way waits for nobody.
#[derive(Debug)]
pub(super) struct Node {
    handle: File,
    fifo: bool,
    identity: (u64, u64),
}

impl Node {
    /// Finds `path`. It must exist: clients make their fifos before they ask for a process.
    pub(super) fn find(path: &Path) -> Result<Self> {
        let describe = |error| path_error(format!("look up stdio path {}", path.display()), error);
        let handle = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(path)
            .map_err(describe)?;
        let metadata = handle.metadata().map_err(describe)?;
        let fifo = metadata.file_type().is_fifo();
        Ok(Self { handle, fifo, identity: (metadata.dev(), metadata.ino()) })
    }

    pub(super) fn is_fifo(&self) -> bool {
        self.fifo
    }

    /// Device and inode: two names of one file are one file.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Opens the very file that was found, not what its path means by now.
    pub(super) fn open(&self, options: &OpenOptions) -> io::Result<File> {
        options.open(format!("/proc/self/fd/{}", self.handle.as_raw_fd()))
    }
}

/// A stdio path that cannot be used is a mistake in the request. NotFound would be read by clients
/// as "no such task".
pub(super) fn path_error(context: String, error: io::Error) -> Error {
    let missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let error = Error::io(context, error);
    if missing { error.with_kind(Code::InvalidArgument) } else { error }
}
