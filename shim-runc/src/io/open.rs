//! Opens what a plan names, in an order in which a failure leaves nothing behind.

use std::{os::fd::OwnedFd, path::Path, sync::Arc};

use tokio::io::Interest;

use super::{
    ChildEnd, ChildStdio, StdioRequest,
    binary::{Logger, Started},
    console::ConsoleSocket,
    fifo::{FifoSink, FifoSource},
    file::{FileSink, open_input},
    input::Feed,
    node::Node,
    output::Sink,
    pipe::{Pipe, set_nonblocking},
    plan::{Output, Plan},
    source::Source,
    watch,
};
use crate::error::{Error, Result};

/// What is open and waits for the process.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) input: Option<Input>,
    pub(super) streams: Streams,
    pub(super) logger: Option<Arc<Logger>>,
}

/// stdin and the pipe to feed, unless a terminal is fed.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) feed: Feed,
    pub(super) pipe: Option<OwnedFd>,
}

/// The outputs the shim carries.
#[derive(Debug)]
pub(super) enum Streams {
    /// Up to two, each with its name.
    Pipes(Vec<(&'static str, Source, Sink)>),
    /// The one of a terminal that is still to come.
    Terminal(ConsoleSocket, Sink),
}

/// A sink that was opened, with what tells whether the next one is the same.
struct Known {
    sink: Sink,
    identity: (u64, u64),
}

/// Opens everything. The second value is the writer that keeps stdin from its end.
///
/// The logging binary comes last: it is the one thing that starts to act when it is opened.
pub(super) async fn open(
    request: &StdioRequest<'_>,
) -> Result<(Opened, Option<OwnedFd>, ChildStdio)> {
    let plan = Plan::new(request.stdin, request.stdout, request.stderr, request.terminal)?;
    let (feed, keeper) = match &plan.stdin {
        Some(path) => open_feed(path).await?,
        None => (None, None),
    };
    let stdout = open_sink(&plan.stdout, None).await?;
    let stderr = open_sink(&plan.stderr, stdout.as_ref()).await?;
    let mut child = ChildStdio {
        stdin: ChildEnd::Null,
        stdout: ChildEnd::Null,
        stderr: ChildEnd::Null,
        console_socket: None,
    };
    let console = if request.terminal { Some(ConsoleSocket::bind()?) } else { None };
    let (input, streams) = match console {
        Some(socket) => {
            child.console_socket = Some(socket.path());
            let input = feed.map(|feed| Input { feed, pipe: None });
            let sink = stdout.map_or(Sink::Nobody, |known| known.sink);
            (input, Streams::Terminal(socket, sink))
        }
        None => {
            let mut outputs = Vec::new();
            child.stdout = connect("stdout", stdout, request, &mut outputs)?;
            child.stderr = connect("stderr", stderr, request, &mut outputs)?;
            let input = feed.map(|feed| connect_input(feed, request, &mut child)).transpose()?;
            (input, Streams::Pipes(outputs))
        }
    };
    let mut opened = Opened { input, streams, logger: None };
    if let Some(uri) = &plan.logger {
        let started =
            Logger::start(request.spawner, uri, request.owner, request.id, request.namespace)
                .await?;
        connect_logger(started, &plan, &mut opened, &mut child)?;
    }
    Ok((opened, keeper, child))
}

async fn open_feed(path: &Path) -> Result<(Option<Feed>, Option<OwnedFd>)> {
    let node = Node::find(path)?;
    if node.is_fifo() {
        let FifoSource { reader, keeper } = FifoSource::open(&node)?;
        return Ok((Some(Feed::Fifo(reader)), Some(keeper)));
    }
    let file = open_input(node, path).await?;
    Ok((Some(Feed::File(Arc::new(file))), None))
}

/// Opens the sink for one stream, or shares `other` when both are one file.
async fn open_sink(output: &Output, other: Option<&Known>) -> Result<Option<Known>> {
    let share =
        |identity| other.filter(|known| known.identity == identity).map(|known| known.sink.share());
    match output {
        Output::Null | Output::Logger => Ok(None),
        Output::Path(path) => {
            let node = Node::find(path)?;
            let identity = node.identity();
            let sink = match share(identity) {
                Some(shared) => shared,
                None if node.is_fifo() => Sink::Fifo(Arc::new(FifoSink::open(&node)?)),
                None => Sink::File(FileSink::open(node, path.clone()).await?),
            };
            Ok(Some(Known { sink, identity }))
        }
        Output::File(path) => {
            let file = FileSink::create(path.clone()).await?;
            let identity = file.identity();
            Ok(Some(Known { sink: share(identity).unwrap_or(Sink::File(file)), identity }))
        }
    }
}

/// Gives the process a pipe for a stream that has a sink.
fn connect(
    stream: &'static str,
    known: Option<Known>,
    request: &StdioRequest<'_>,
    outputs: &mut Vec<(&'static str, Source, Sink)>,
) -> Result<ChildEnd> {
    let Some(known) = known else { return Ok(ChildEnd::Null) };
    let pipe = Pipe::output(request.owner)?;
    let source = Source::pipe(pipe.ours).map_err(|error| Error::io("watch output pipe", error))?;
    outputs.push((stream, source, known.sink));
    Ok(ChildEnd::Fd(pipe.child))
}

fn connect_input(feed: Feed, request: &StdioRequest<'_>, child: &mut ChildStdio) -> Result<Input> {
    let pipe = Pipe::input(request.owner)?;
    child.stdin = ChildEnd::Fd(pipe.child);
    Ok(Input { feed, pipe: Some(pipe.ours) })
}

/// Gives a logger's pipes to those who write to them; the others end at once.
fn connect_logger(
    started: Started,
    plan: &Plan,
    opened: &mut Opened,
    child: &mut ChildStdio,
) -> Result<()> {
    let Started { logger, stdout, stderr } = started;
    opened.logger = Some(Arc::new(logger));
    if let Streams::Terminal(_, sink) = &mut opened.streams {
        set_nonblocking(&stdout)?;
        let stdout = watch(stdout, Interest::WRITABLE)
            .map_err(|error| Error::io("watch logger pipe", error))?;
        *sink = Sink::Logger(stdout);
        return Ok(());
    }
    if plan.stdout == Output::Logger {
        child.stdout = ChildEnd::Fd(stdout);
    }
    if plan.stderr == Output::Logger {
        child.stderr = ChildEnd::Fd(stderr);
    }
    Ok(())
}
