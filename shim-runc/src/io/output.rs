//! One output stream: from a process to where its client wants it.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    Watched,
    fifo::FifoSink,
    file::FileSink,
    relay::{Failure, Relay, discard},
    source::Source,
};

/// Where a stream goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// A fifo, which stdout and stderr may share.
    Fifo(Arc<FifoSink>),
    /// A file.
    File(FileSink),
    /// The pipe of a logging binary (only for a terminal: other processes write to it themselves).
    Logger(Watched),
    /// Nobody.
    Nobody,
}

/// Who is spoken of in a report.
#[derive(Debug, Clone)]
pub(super) struct Label {
    pub(super) namespace: Arc<str>,
    pub(super) id: Arc<str>,
    pub(super) stream: &'static str,
}

/// Counts the streams that still have output to deliver. Every clone is one more.
#[derive(Debug)]
pub(super) struct Running(Arc<watch::Sender<usize>>);

impl Running {
    pub(super) fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|running| *running += 1);
        Self(Arc::clone(count))
    }
}

impl Clone for Running {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Sink {
    /// A second way into what is behind a fifo or file.
    pub(super) fn share(&self) -> Self {
        match self {
            Self::Fifo(fifo) => Self::Fifo(Arc::clone(fifo)),
            Self::File(file) => Self::File(file.share()),
            Self::Logger(_) | Self::Nobody => Self::Nobody,
        }
    }
}

impl Label {
    pub(super) fn new(namespace: &str, id: &str) -> Self {
        Self { namespace: namespace.into(), id: id.into(), stream: "stdio" }
    }

    /// The same process, another of its streams.
    pub(super) fn stream(&self, stream: &'static str) -> Self {
        Self { namespace: Arc::clone(&self.namespace), id: Arc::clone(&self.id), stream }
    }

    pub(super) fn warn(&self, what: &str, error: &dyn std::fmt::Display) {
        tracing::warn!(
            namespace = &*self.namespace,
            id = &*self.id,
            stream = self.stream,
            %error,
            "{what}"
        );
    }
}

/// Carries one stream from its first byte to its end. Never fails and never stops early: a sink
/// that breaks is replaced by nobody, so that the process does not notice.
pub(super) async fn carry(mut source: Source, sink: Sink, running: Running, label: Label) {
    let pipes = source.is_pipe();
    let outcome = match &sink {
        Sink::Fifo(fifo) => Relay::new(pipes).run(&mut source, &fifo.writer).await,
        Sink::Logger(pipe) => Relay::new(pipes).run(&mut source, pipe).await,
        Sink::File(file) => file.run(&mut source, &running, &label).await,
        Sink::Nobody => discard(&mut source).await.map_err(Failure::Source),
    };
    match outcome {
        Ok(()) => {}
        Err(Failure::Source(error)) => {
            label.warn("reading output failed, the rest is lost", &error)
        }
        Err(Failure::Sink(error)) => {
            label.warn("stdio sink failed, further output is dropped", &error);
            if let Err(error) = discard(&mut source).await {
                label.warn("reading output failed, the rest is lost", &error);
            }
        }
    }
    drop(source);
    if let Sink::Fifo(fifo) = sink
        // The last of the streams that share it ends the fifo.
        && let Some(fifo) = Arc::into_inner(fifo)
    {
        // A client that never came is waited for, as containerd's shim waits for it before it
        // starts anything; one that was there and has left is not.
        let running = (!fifo.was_read).then_some(running);
        fifo.finish().await;
        drop(running);
    }
}
