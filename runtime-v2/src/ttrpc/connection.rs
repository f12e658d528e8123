//! The client side of one connection.
//!
//! ```text
//!   callers --(bounded queue)--> writer --> peer
//!      ^                           | registers the call
//!      +------- reader <-----------+----- peer
//! ```
//! One task owns the stream. The writer gives out the stream ids, since Go's server wants them
//! strictly increasing on the wire, and it skips calls whose caller has gone. A caller that goes
//! takes its entry along, so calls to a peer that never answers cost nothing once they are over.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame::{HEADER_LEN, Header, MAX_PAYLOAD, TYPE_REQUEST, TYPE_RESPONSE},
    ttrpc::{KeyValue, Request, Response},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split},
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout_at},
};

use super::CallError;

/// Calls that may wait for the writer. When a peer stops reading, callers wait here with their
/// own deadlines, and memory stays bounded.
const QUEUE: usize = 64;

type Reply = oneshot::Sender<Result<Vec<u8>, CallError>>;

/// A handle on one connection; clones share it. It stays open until [`Connection::close`], the
/// peer's end, or the drop of the last handle.
#[derive(Debug, Clone)]
pub struct Connection {
    calls: mpsc::Sender<Call>,
    pending: Arc<Pending>,
    state: watch::Receiver<State>,
    stop: Arc<watch::Sender<bool>>,
    metadata: Arc<[(String, String)]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Closed,
}

/// A request on its way to the writer.
#[derive(Debug)]
struct Call {
    payload: Vec<u8>,
    ticket: Arc<Mutex<Option<u32>>>,
    reply: Reply,
}

/// Calls that were written and have no answer yet.
#[derive(Debug, Default)]
struct Pending(Mutex<HashMap<u32, Reply>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Reply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Takes over `stream`. `metadata` goes along with every call.
    pub fn new<S>(stream: S, metadata: Vec<(String, String)>) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (calls, queue) = mpsc::channel(QUEUE);
        let (state_tx, state) = watch::channel(State::Open);
        let (stop, stop_rx) = watch::channel(false);
        let pending = Arc::new(Pending::default());
        tokio::spawn(drive(stream, queue, Arc::clone(&pending), state_tx, stop_rx));
        Self { calls, pending, state, stop: Arc::new(stop), metadata: metadata.into() }
    }

    /// Makes one unary call. `limit` is sent along, so that the peer gives up too.
    ///
    /// # Errors
    /// One of [`CallError`]. Only `Refused` says that the peer has finished with the call.
    pub async fn call(
        &self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        let payload = self.encode(service, method, payload, limit)?;
        let (reply, answer) = oneshot::channel();
        let ticket = Arc::new(Mutex::new(None));
        let mut waiting =
            Waiting { answer, ticket: Arc::clone(&ticket), pending: Arc::clone(&self.pending) };
        let exchange = async {
            let call = Call { payload, ticket, reply };
            self.calls.send(call).await.map_err(|_| CallError::Closed)?;
            (&mut waiting.answer).await.map_err(|_| CallError::Closed)?
        };
        match limit {
            None => exchange.await,
            Some(limit) => timeout_at(Instant::now() + limit, exchange)
                .await
                .map_err(|_| CallError::Deadline(limit))?,
        }
    }

    fn encode(
        &self,
        service: &str,
        method: &str,
        payload: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        let mut request = Request::new();
        service.clone_into(&mut request.service);
        method.clone_into(&mut request.method);
        request.payload = payload;
        request.timeout_nano =
            limit.map_or(0, |limit| i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX));
        request.metadata = self.metadata.iter().map(key_value).collect();
        let bytes =
            request.write_to_bytes().map_err(|error| CallError::Garbled(error.to_string()))?;
        if bytes.len() > MAX_PAYLOAD {
            return Err(CallError::TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    /// Returns when the connection is closed, by whichever side.
    pub async fn closed(&self) {
        self.when_closed().await;
    }

    /// The same, in a form that does not keep the connection open.
    pub fn when_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state.clone();
        async move {
            // An error means that the driver is gone, which is closed as well.
            let _ = state.wait_for(|state| *state == State::Closed).await;
        }
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        *self.state.borrow() == State::Closed
    }

    /// Closes the connection; calls in flight end with [`CallError::Closed`].
    pub fn close(&self) {
        self.stop.send_replace(true);
    }
}

fn key_value((key, value): &(String, String)) -> KeyValue {
    let mut pair = KeyValue::new();
    pair.key.clone_from(key);
    pair.value.clone_from(value);
    pair
}

/// A caller's place in the books; leaving by any door clears it.
struct Waiting {
    answer: oneshot::Receiver<Result<Vec<u8>, CallError>>,
    ticket: Arc<Mutex<Option<u32>>>,
    pending: Arc<Pending>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Closed first: from here on the writer skips this call, or has registered it already.
        self.answer.close();
        let mut pending = self.pending.lock();
        if let Some(id) = *self.ticket.lock().unwrap_or_else(PoisonError::into_inner) {
            pending.remove(&id);
        }
    }
}

/// Owns the stream until one side is done with it, then fails what is in flight.
async fn drive<S>(
    stream: S,
    mut queue: mpsc::Receiver<Call>,
    pending: Arc<Pending>,
    state: watch::Sender<State>,
    mut stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite,
{
    {
        let (reader, writer) = split(stream);
        tokio::select! {
            ended = read_loop(reader, &pending) => log_end(ended),
            ended = write_loop(writer, &mut queue, &pending) => log_end(ended),
            _ = stop.wait_for(|stop| *stop) => {}
        }
        // The stream is dropped here: once `state` says closed, the descriptor is closed.
    }
    queue.close();
    while queue.try_recv().is_ok() {}
    pending.lock().clear();
    state.send_replace(State::Closed);
}

fn log_end(ended: io::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection to a shim ended");
    }
}

async fn write_loop<W: AsyncWrite>(
    writer: W,
    queue: &mut mpsc::Receiver<Call>,
    pending: &Pending,
) -> io::Result<()> {
    tokio::pin!(writer);
    let mut next_id: u32 = 1;
    while let Some(call) = queue.recv().await {
        let id = next_id;
        if !register(call.reply, &call.ticket, id, pending) {
            continue;
        }
        // Ids run out after two thousand million calls; the shim's connection then starts anew.
        next_id = next_id.checked_add(2).ok_or(io::ErrorKind::QuotaExceeded)?;
        let length = u32::try_from(call.payload.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = Header { length, stream_id: id, kind: TYPE_REQUEST, flags: 0 };
        writer.write_all(&header.encode()).await?;
        writer.write_all(&call.payload).await?;
        writer.flush().await?;
    }
    Ok(())
}

/// Enters a call into the books, unless its caller has gone.
fn register(reply: Reply, ticket: &Mutex<Option<u32>>, id: u32, pending: &Pending) -> bool {
    let mut pending = pending.lock();
    if reply.is_closed() {
        return false;
    }
    *ticket.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    pending.insert(id, reply);
    true
}

async fn read_loop<R: AsyncRead>(reader: R, pending: &Pending) -> io::Result<()> {
    tokio::pin!(reader);
    let mut head = [0; HEADER_LEN];
    loop {
        reader.read_exact(&mut head).await?;
        let header = Header::decode(head);
        let length = usize::try_from(header.length).map_err(|_| io::ErrorKind::InvalidData)?;
        let answer = if length > MAX_PAYLOAD {
            skip(&mut reader, header.length.into()).await?;
            Err(CallError::TooLarge(length))
        } else {
            let mut payload = vec![0; length];
            reader.read_exact(&mut payload).await?;
            decode(&payload)
        };
        if header.kind != TYPE_RESPONSE {
            continue;
        }
        if let Some(reply) = pending.lock().remove(&header.stream_id) {
            // The caller may have left this instant; then nobody wants the answer.
            let _ = reply.send(answer);
        }
    }
}

/// Reads over a payload nobody can hold, so that the stream stays in step for other calls.
pub(super) async fn skip<R: AsyncRead + Unpin>(reader: &mut R, length: u64) -> io::Result<()> {
    let copied = tokio::io::copy(&mut reader.take(length), &mut tokio::io::sink()).await?;
    if copied == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn decode(payload: &[u8]) -> Result<Vec<u8>, CallError> {
    let mut response = Response::parse_from_bytes(payload)
        .map_err(|error| CallError::Garbled(error.to_string()))?;
    if let Some(status) = response.status.as_ref()
        && let Some(code) = Code::from_number(status.code.value())
    {
        return Err(CallError::Refused { code, message: status.message.clone() });
    }
    Ok(std::mem::take(&mut response.payload))
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
