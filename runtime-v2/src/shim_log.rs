//! Consuming a shim's log.
//!
//! A shim writes its log into a fifo in its bundle, and stands still when that is full; so
//! somebody reads it as long as the shim lives. The fifo is opened for reading *and* writing:
//! then it opens at once, whether or not the shim ever does its part, and shows no end when a
//! shim re-opens it. Its lines become events of target `shim`.

use std::{io, path::Path};

use tokio::{
    net::unix::pipe::{OpenOptions, Receiver},
    sync::oneshot,
    task::{JoinHandle, yield_now},
};

use crate::{
    error::{Error, Result},
    id::Key,
};

/// Longer lines are cut in pieces: a shim does not decide how much memory its manager uses.
const MAX_LINE: usize = 16 << 10;

/// Reads of [`MAX_LINE`] bytes at the end: 64 KiB is what a pipe holds.
const LAST_READS: usize = 4;

/// A shim's log being read. Dropping it stops the reading and closes the fifo.
#[derive(Debug)]
pub(crate) struct ShimLog {
    stop: Option<oneshot::Sender<()>>,
    reading: JoinHandle<()>,
}

impl ShimLog {
    /// Opens the fifo and starts to read.
    pub(crate) fn open(fifo: &Path, key: &Key) -> Result<Self> {
        let receiver = OpenOptions::new()
            .read_write(true)
            .open_receiver(fifo)
            .map_err(|error| Error::io(format!("open log {}", fifo.display()), error))?;
        let (stop, stopped) = oneshot::channel();
        let reading = tokio::spawn(read(receiver, stopped, key.clone()));
        Ok(Self { stop: Some(stop), reading })
    }

    /// Reads what is there, the last words of a shim that has ended, and closes the fifo.
    pub(crate) async fn finish(mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that the reading has ended by itself.
            let _ = stop.send(());
        }
        let _ = (&mut self.reading).await;
    }
}

impl Drop for ShimLog {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read(receiver: Receiver, mut stopped: oneshot::Receiver<()>, key: Key) {
    let mut lines = Lines { key, pending: Vec::new() };
    let ended = loop {
        tokio::select! {
            ready = receiver.readable() => match ready.and_then(|()| lines.take(&receiver)) {
                Ok(Took::End) => break Ok(()),
                // A shim that writes faster than this reads must not keep the thread for itself.
                Ok(Took::Some) => yield_now().await,
                Ok(Took::Nothing) => {}
                Err(error) => break Err(error),
            },
            _ = &mut stopped => break drain(&receiver, &mut lines),
        }
    };
    lines.finish();
    if let Err(error) = ended {
        tracing::warn!(namespace = %lines.key.namespace, id = %lines.key.id, %error, "reading the log of a shim failed");
    }
}

/// A shim that lives on, for other containers of its pod, may go on writing: its last words about
/// this one are within what a pipe holds.
fn drain(receiver: &Receiver, lines: &mut Lines) -> io::Result<()> {
    for _ in 0..LAST_READS {
        match lines.take(receiver)? {
            Took::Some => {}
            Took::Nothing | Took::End => break,
        }
    }
    Ok(())
}

/// What one read brought.
enum Took {
    Some,
    Nothing,
    End,
}

/// Bytes becoming lines.
struct Lines {
    key: Key,
    pending: Vec<u8>,
}

impl Lines {
    /// Reads what is there. The room for it is there while it is read only: a node has a thousand
    /// shims that say nothing.
    fn take(&mut self, receiver: &Receiver) -> io::Result<Took> {
        let mut buffer = [0; MAX_LINE];
        match receiver.try_read(&mut buffer) {
            Ok(0) => Ok(Took::End),
            Ok(count) => {
                self.push(&buffer[..count]);
                Ok(Took::Some)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Took::Nothing),
            Err(error) => Err(error),
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(&bytes[..end]);
            self.flush();
            bytes = &bytes[end + 1..];
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= MAX_LINE {
            self.flush();
        }
    }

    fn finish(&mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            let line = String::from_utf8_lossy(&self.pending);
            tracing::info!(target: "shim", namespace = %self.key.namespace, id = %self.key.id, "{line}");
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        os::unix::fs::OpenOptionsExt,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        thread,
        time::{Duration, Instant},
    };

    use nix::{fcntl::OFlag, sys::stat::Mode, unistd::mkfifo};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// Upper bound for things that must happen; only a hang meets it.
    const HANG: Duration = Duration::from_secs(20);

    /// A log that is slower than its writers, as a terminal is.
    #[derive(Clone, Default)]
    struct Slow(Arc<AtomicUsize>);

    impl Subscriber for Slow {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            (0..100).for_each(|_| std::hint::spin_loop());
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    /// Writes lines until told to stop, or for so long that the reader has held up everybody else.
    fn flood(fifo: &Path, stop: &AtomicBool) -> bool {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let mut log = options.open(fifo).unwrap();
        let begun = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if begun.elapsed() > HANG {
                return false;
            }
            let _ = log.write(&b"x\n".repeat(1 << 12));
        }
        true
    }

    #[tokio::test]
    async fn a_shim_that_logs_without_end_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("log");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let slow = Slow::default();
        let _log = tracing::subscriber::set_default(slow.clone());
        let log = ShimLog::open(&fifo, &Key::new("ns", "c1").unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flooding = {
            let (fifo, stop) = (fifo.clone(), Arc::clone(&stop));
            thread::spawn(move || flood(&fifo, &stop))
        };
        // The reading is on this very thread, and gives it back.
        while slow.0.load(Ordering::Relaxed) < 20_000 {
            tokio::task::yield_now().await;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(flooding.join().unwrap(), "held up");
        log.finish().await;
    }
}
