//! Log files, and other files that are no fifos. Writing to one may wait for a disk, so it happens
//! on the blocking pool, a burst at a time: an idle stream holds no thread and no buffer.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{errno::Errno, unistd::read};

use super::{
    node::{Node, path_error},
    output::{Label, Running},
    relay::{COPY_CHUNK, Failure},
    source::Source,
};
use crate::{
    error::{Error, Result},
    threads,
};

/// The buffer of a burst that is more than a few lines.
const CHUNK: usize = 64 << 10;

/// Bytes after which a burst gives its thread back: the pool is small and shared.
const BURST: usize = 4 << 20;

/// A file to append output to.
#[derive(Debug)]
pub(super) struct FileSink {
    file: Arc<File>,
    identity: (u64, u64),
}

/// How a burst ended.
enum Burst {
    Empty,
    Full,
    End,
    Failed(Errno),
}

impl FileSink {
    /// Opens a log file for appending; makes it and its directories as needed.
    pub(super) async fn create(path: PathBuf) -> Result<Self> {
        threads::run(move || {
            let describe = |error| path_error(format!("open log file {}", path.display()), error);
            if let Some(parent) = path.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(describe)?;
            }
            let mut options = OpenOptions::new();
            options.append(true).create(true).mode(0o644).custom_flags(libc::O_NOCTTY);
            Self::new(options.open(&path).map_err(describe)?)
        })
        .await?
    }

    /// Opens what a client named without a scheme and what is no fifo. It is never created.
    pub(super) async fn open(node: Node, path: PathBuf) -> Result<Self> {
        threads::run(move || {
            let mut options = OpenOptions::new();
            options.append(true).custom_flags(libc::O_NOCTTY);
            let file = node.open(&options).map_err(|error| {
                path_error(format!("open stdio path {}", path.display()), error)
            })?;
            Self::new(file)
        })
        .await?
    }

    fn new(file: File) -> Result<Self> {
        let metadata = file.metadata().map_err(|error| Error::io("examine stdio file", error))?;
        Ok(Self { file: Arc::new(file), identity: (metadata.dev(), metadata.ino()) })
    }

    /// Device and inode: two names of one file are one file.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Another stream into the same open file, so that both append in order of time.
    pub(super) fn share(&self) -> Self {
        Self { file: Arc::clone(&self.file), identity: self.identity }
    }

    /// Appends everything up to the end of `source`. A write that fails loses its bytes and no
    /// more: a full disk must stop neither the process nor the log of later.
    pub(super) async fn run(
        &self,
        source: &mut Source,
        running: &Running,
        label: &Label,
    ) -> Result<(), Failure> {
        let mut reported = false;
        loop {
            let readable = source.readable().await.map_err(Failure::Source)?;
            let burst = || {
                let (fd, file, job) = (source.share(), Arc::clone(&self.file), running.clone());
                move || {
                    let result = append_burst(&fd, &file);
                    drop((fd, file, job));
                    result
                }
            };
            let (burst, lost) = threads::run_some_time(burst)
                .await
                .map_err(|error| Failure::Sink(io::Error::other(error)))?;
            if let Some(error) = lost.filter(|_| !reported) {
                reported = true;
                label.warn("stdio file refuses output, which is dropped", &error);
            }
            let failed = match burst {
                Burst::Full => continue,
                Burst::End => return Ok(()),
                Burst::Failed(errno) => errno,
                Burst::Empty => match Source::emptied(readable, !source.is_pipe()) {
                    Ok(true) => return Ok(()),
                    Ok(false) => continue,
                    Err(errno) => errno,
                },
            };
            if source.recover(failed).await.map_err(|errno| Failure::Source(errno.into()))? {
                return Ok(());
            }
        }
    }
}

/// Runs on the pool. The second value is the first write that failed.
fn append_burst(source: &OwnedFd, mut file: &File) -> (Burst, Option<io::Error>) {
    // Most bursts are a line: they need no heap.
    let mut small = [0; COPY_CHUNK];
    let mut large = Vec::new();
    let mut lost = None;
    let mut moved = 0;
    while moved < BURST {
        if moved >= COPY_CHUNK && large.is_empty() {
            large.resize(CHUNK, 0);
        }
        let chunk = if large.is_empty() { &mut small[..] } else { &mut large[..] };
        match read(source, chunk) {
            Ok(0) => return (Burst::End, lost),
            Ok(filled) => {
                moved += filled;
                if let Err(error) = file.write_all(&chunk[..filled]) {
                    lost.get_or_insert(error);
                }
            }
            Err(Errno::EAGAIN) => return (Burst::Empty, lost),
            Err(Errno::EINTR) => {}
            Err(errno) => return (Burst::Failed(errno), lost),
        }
    }
    (Burst::Full, lost)
}

/// Opens a file as stdin.
pub(super) async fn open_input(node: Node, path: &Path) -> Result<File> {
    let context = format!("open stdio path {}", path.display());
    threads::run(move || {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NOCTTY);
        node.open(&options).map_err(|error| path_error(context, error))
    })
    .await?
}

/// Reads the next piece of a file on the pool; an empty one is the end.
pub(super) async fn read_chunk(file: &Arc<File>) -> io::Result<Vec<u8>> {
    let piece = || {
        let file = Arc::clone(file);
        move || {
            let mut chunk = vec![0; CHUNK];
            let filled = io::Read::read(&mut &*file, &mut chunk)?;
            chunk.truncate(filled);
            Ok(chunk)
        }
    };
    threads::run_some_time(piece).await.map_err(io::Error::other)?
}
