//! stdin: from the client's fifo (or a file) to the process.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::termios::{SpecialCharacterIndices, tcgetattr},
    unistd::{read, write},
};
use tokio::{io::Interest, task::coop::consume_budget, time::sleep};

use super::{
    file::read_chunk,
    output::Label,
    relay::{COPY_CHUNK, Failure, Relay},
    source::Source,
    watch,
};

/// Pauses between tries to type into a terminal that is full. The kernel makes room in a worker,
/// after it has told the writer that there is room, so its word cannot be waited for.
const TERMINAL_FIRST: Duration = Duration::from_millis(10);
const TERMINAL_LAST: Duration = Duration::from_millis(500);

/// Where input comes from.
#[derive(Debug)]
pub(super) enum Feed {
    /// The reading end of the client's fifo.
    Fifo(OwnedFd),
    /// A file.
    File(Arc<File>),
}

/// Feeds a process through its stdin pipe. Dropping the pipe at the end is its end of file.
pub(super) async fn feed_pipe(feed: Feed, pipe: OwnedFd, label: Label) {
    let outcome = match feed {
        Feed::Fifo(reader) => splice_in(reader, pipe).await,
        Feed::File(file) => copy_in(&file, pipe).await,
    };
    match outcome {
        // A process may stop reading its stdin at any time.
        Ok(()) | Err(Failure::Sink(_)) => {}
        Err(Failure::Source(error)) => label.warn("reading stdin failed", &error),
    }
}

async fn splice_in(reader: OwnedFd, pipe: OwnedFd) -> Result<(), Failure> {
    let mut source = Source::pipe(reader).map_err(Failure::Source)?;
    let pipe = watch(pipe, Interest::WRITABLE).map_err(Failure::Sink)?;
    Relay::new(true).run(&mut source, &pipe).await
}

async fn copy_in(file: &Arc<File>, pipe: OwnedFd) -> Result<(), Failure> {
    let pipe = watch(pipe, Interest::WRITABLE).map_err(Failure::Sink)?;
    loop {
        let chunk = read_chunk(file).await.map_err(Failure::Source)?;
        if chunk.is_empty() {
            return Ok(());
        }
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let written = pipe
                .async_io(Interest::WRITABLE, |fd| write(fd, rest).map_err(io::Error::from))
                .await
                .map_err(Failure::Sink)?;
            rest = &rest[written..];
        }
    }
}

/// Types input into a terminal, and at its end the terminal's own end-of-file key: closing the
/// terminal instead would hang up on a process that still has output to give.
pub(super) async fn feed_terminal(feed: Feed, master: Arc<OwnedFd>, label: Label) {
    let outcome = match feed {
        Feed::Fifo(reader) => type_fifo(reader, master.as_fd()).await,
        Feed::File(file) => type_file(&file, master.as_fd()).await,
    };
    match outcome {
        // The terminal was hung up: its process is gone.
        Ok(()) | Err(Failure::Sink(_)) => {}
        Err(Failure::Source(error)) => label.warn("reading stdin failed", &error),
    }
}

async fn type_fifo(reader: OwnedFd, master: BorrowedFd<'_>) -> Result<(), Failure> {
    let source = Source::pipe(reader).map_err(Failure::Source)?;
    let mut line_open = false;
    loop {
        consume_budget().await;
        let readable = source.readable().await.map_err(Failure::Source)?;
        match read_some(source.fd()) {
            Ok(typed) => {
                let Some(last) = typed.last() else { break };
                line_open = *last != b'\n';
                type_all(&typed, master).await?;
            }
            Err(Errno::EAGAIN) => {
                if Source::emptied(readable, false)
                    .map_err(|errno| Failure::Source(errno.into()))?
                {
                    break;
                }
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Failure::Source(errno.into())),
        }
    }
    type_end(line_open, master).await
}

/// What is there, on the heap for as long as it takes to type it: a buffer on the stack would live
/// in the task, and so in every idle terminal.
fn read_some(source: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut chunk = [0; COPY_CHUNK];
    let filled = read(source, &mut chunk)?;
    Ok(chunk[..filled].to_vec())
}

async fn type_file(file: &Arc<File>, master: BorrowedFd<'_>) -> Result<(), Failure> {
    let mut line_open = false;
    loop {
        let chunk = read_chunk(file).await.map_err(Failure::Source)?;
        let Some(last) = chunk.last() else { break };
        line_open = *last != b'\n';
        type_all(&chunk, master).await?;
    }
    type_end(line_open, master).await
}

/// The first end-of-file key after an unfinished line only hands that line over.
async fn type_end(line_open: bool, master: BorrowedFd<'_>) -> Result<(), Failure> {
    let settings = tcgetattr(master).map_err(|errno| Failure::Sink(errno.into()))?;
    let key = settings.control_chars[SpecialCharacterIndices::VEOF as usize];
    let keys = [key; 2];
    type_all(&keys[..if line_open { 2 } else { 1 }], master).await
}

async fn type_all(mut bytes: &[u8], master: BorrowedFd<'_>) -> Result<(), Failure> {
    let mut pause = TERMINAL_FIRST;
    while !bytes.is_empty() {
        match write(master, bytes) {
            Ok(0) | Err(Errno::EAGAIN) => {
                sleep(pause).await;
                pause = TERMINAL_LAST.min(pause * 2);
            }
            Ok(written) => {
                bytes = &bytes[written..];
                pause = TERMINAL_FIRST;
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Failure::Sink(errno.into())),
        }
    }
    Ok(())
}
