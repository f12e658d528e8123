//! A small ttrpc server: unary calls, each in its own task, answers in the order they come.

use std::{io, sync::Arc, time::Duration};

use super::{CallError, connection::skip};
use async_trait::async_trait;
use nix::errno::Errno;
use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame::{HEADER_LEN, Header, MAX_PAYLOAD, TYPE_REQUEST, TYPE_RESPONSE},
    ttrpc::{Request, Response, Status},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    net::UnixListener,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
};

/// Answers that may wait for a client that does not read.
const QUEUE: usize = 64;

/// What the calls of one connection may hold in memory, in kilobytes: a hundred thousand that wait
/// for a process each, or thirty of the largest. There is no room for more.
const ROOM: usize = 128 << 10;

/// After an accept that failed for want of descriptors or memory: calls that are under way end
/// meanwhile and give some back. The connection stays in the queue.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a server does with a call.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers one request with the payload of the response.
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status>;

    /// The same for a client that may leave before the answer, which drops the call; then there is
    /// no answer. A call that has something to undo first overrides this: the answer still reaches
    /// a client that has closed its writing half only.
    async fn call_until(&self, request: Request, mut client: Client) -> Option<Answer> {
        tokio::select! {
            answer = self.call(request) => Some(answer),
            () = client.left() => None,
        }
    }
}

/// What a call comes to.
pub type Answer = Result<Vec<u8>, Status>;

/// The client of a call, who may leave: close the connection, or its writing half.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its sender is dropped with the loop that reads.
    there: watch::Receiver<()>,
}

impl Client {
    /// Returns when the client has left.
    pub async fn left(&mut self) {
        // Nothing is ever sent, so the only change is the end.
        while self.there.changed().await.is_ok() {}
    }
}

/// Serves every connection of `listener` that comes from this very user, until dropped.
///
/// # Errors
/// When the listener itself fails.
pub async fn serve(listener: UnixListener, handler: Arc<dyn Handler>) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let user = nix::unistd::geteuid().as_raw();
    loop {
        while connections.try_join_next().is_some() {}
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) if may_pass(&error) => {
                tracing::warn!(%error, "a connection cannot be accepted now");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == user => {
                connections.spawn(serve_connection(stream, Arc::clone(&handler)));
            }
            Ok(peer) => tracing::warn!(uid = peer.uid(), "connection of another user refused"),
            Err(error) => tracing::debug!(%error, "connection without credentials refused"),
        }
    }
}

/// Whether a failed accept says nothing about the listener itself: a process that is short of
/// descriptors for a moment must not lose its events for the rest of its life.
fn may_pass(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw).is_some_and(|errno| {
        matches!(
            errno,
            Errno::EMFILE
                | Errno::ENFILE
                | Errno::ENOBUFS
                | Errno::ENOMEM
                | Errno::ECONNABORTED
                | Errno::EINTR
        )
    })
}

/// Serves one connection until its client closes it, or the writing half of it; calls that are
/// still running then end, and what they answer is written.
pub async fn serve_connection<S>(stream: S, handler: Arc<dyn Handler>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = split(stream);
    let (answers, queue) = mpsc::channel(QUEUE);
    let reading = async {
        let mut calls = JoinSet::new();
        let ended = read_loop(reader, handler, answers, &mut calls).await;
        while calls.join_next().await.is_some() {}
        // Not an error of this future: the answers that are queued have to be written.
        Ok(ended)
    };
    let ended = tokio::try_join!(reading, write_loop(writer, queue));
    if let Err(error) | Ok((Err(error), ())) = ended {
        tracing::debug!(%error, "ttrpc connection ended");
    }
}

async fn read_loop<R: AsyncRead>(
    reader: R,
    handler: Arc<dyn Handler>,
    answers: mpsc::Sender<Vec<u8>>,
    calls: &mut JoinSet<()>,
) -> io::Result<()> {
    tokio::pin!(reader);
    let (_here, there) = watch::channel(());
    let room = Arc::new(Semaphore::new(ROOM));
    let mut head = [0; HEADER_LEN];
    loop {
        while calls.try_join_next().is_some() {}
        reader.read_exact(&mut head).await?;
        let header = Header::decode(head);
        let place = match place(&room, header.length) {
            Ok(place) => place,
            Err(status) => {
                // Read over, so that the other calls of this connection go on.
                skip(&mut reader, header.length.into()).await?;
                // An error means that the connection is over and nobody waits for the answer.
                let _ = answers.send(frame(header.stream_id, Err(status))).await;
                continue;
            }
        };
        let length = usize::try_from(header.length).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload).await?;
        if header.kind == TYPE_REQUEST {
            let (handler, answers) = (Arc::clone(&handler), answers.clone());
            let client = Client { there: there.clone() };
            calls.spawn(async move {
                let _place = place;
                let Some(answer) = answer(&payload, handler.as_ref(), client).await else { return };
                // An error means that the connection is over and nobody waits for the answer.
                let _ = answers.send(frame(header.stream_id, answer)).await;
            });
        }
    }
}

/// Room for a call of this size.
fn place(room: &Arc<Semaphore>, length: u32) -> Result<OwnedSemaphorePermit, Status> {
    let size = usize::try_from(length).unwrap_or(usize::MAX);
    if size > MAX_PAYLOAD {
        return Err(CallError::TooLarge(size).status());
    }
    // What a call costs besides what it says is less than one kilobyte.
    Arc::clone(room).try_acquire_many_owned(1 + length / 1024).map_err(|_| {
        Code::ResourceExhausted.status("too many calls are under way on this connection")
    })
}

async fn answer(payload: &[u8], handler: &dyn Handler, client: Client) -> Option<Answer> {
    match Request::parse_from_bytes(payload) {
        Ok(request) => handler.call_until(request, client).await,
        Err(error) => Some(Err(Code::InvalidArgument.status(&error.to_string()))),
    }
}

fn frame(stream_id: u32, result: Answer) -> Vec<u8> {
    let mut response = Response::new();
    match result {
        Ok(payload) => response.payload = payload,
        Err(status) => response.status = Some(status).into(),
    }
    let body = response.write_to_bytes().unwrap_or_default();
    let length = u32::try_from(body.len()).unwrap_or(0);
    let mut bytes = Header { length, stream_id, kind: TYPE_RESPONSE, flags: 0 }.encode().to_vec();
    bytes.extend_from_slice(&body);
    bytes
}

async fn write_loop<W: AsyncWrite>(
    writer: W,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    tokio::pin!(writer);
    while let Some(frame) = queue.recv().await {
        writer.write_all(&frame).await?;
    }
    Ok(())
}
