//! A stand-in for containerd's event socket: takes `Forward` calls, keeps the envelopes in the order in which they came,
//! and misbehaves on demand.
//!
//! It speaks the ttrpc frames itself, because a server library answers on its own terms: this one can hold its answers,
//! stop reading, or drop every connection at once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim::events::ForwardRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use ttrpc::proto::{Code, Request, Response, Status};

use crate::deadline::{self, HANG};
use crate::event::Event;
use crate::failure::{Context, Failure, Result};

/// How the sink treats calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Answers at once.
    Prompt,
    /// Answers after a while.
    Slow(Duration),
    /// Takes calls and answers none until it changes.
    Silent,
    /// Reads nothing until it changes: calls pile up in the socket.
    Deaf,
    /// Refuses every call.
    Refusing,
}

/// One call as it came.
#[derive(Debug, Clone)]
pub struct Received {
    /// The event, or what is wrong with it.
    pub event: std::result::Result<Event, String>,
    /// The envelope's namespace.
    pub namespace: String,
    /// The envelope's topic.
    pub topic: String,
    /// Which connection brought it, counted from 0.
    pub connection: usize,
}

#[derive(Debug, Default)]
struct Record {
    received: Vec<Received>,
    connections: usize,
}

/// The sink.
#[derive(Debug)]
pub struct FakeContainerd {
    path: PathBuf,
    record: Arc<Mutex<Record>>,
    manner: watch::Sender<Manner>,
    serving: Option<JoinSet<()>>,
}

impl FakeContainerd {
    /// Listens on `path`.
    ///
    /// # Errors
    /// When the path cannot be bound.
    pub fn listen(path: &Path) -> Result<Self> {
        let (manner, _) = watch::channel(Manner::Prompt);
        let mut sink =
            Self { path: path.to_path_buf(), record: Arc::default(), manner, serving: None };
        sink.open()?;
        Ok(sink)
    }

    /// Changes how calls are treated, from the next one on; those held are answered.
    pub fn behave(&self, manner: Manner) {
        self.manner.send_replace(manner);
    }

    /// Ends: every connection breaks, the socket file is gone.
    pub fn close(&mut self) {
        // Dropping the set aborts the accept loop and all connections with it.
        self.serving = None;
        let _ = std::fs::remove_file(&self.path);
    }

    /// Listens again on the same path.
    ///
    /// # Errors
    /// When the path cannot be bound.
    pub fn open(&mut self) -> Result {
        let listener =
            UnixListener::bind(&self.path).context(format!("binding {}", self.path.display()))?;
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, Arc::clone(&self.record), self.manner.subscribe()));
        self.serving = Some(serving);
        Ok(())
    }

    /// Everything received so far.
    #[must_use]
    pub fn received(&self) -> Vec<Received> {
        lock(&self.record).received.clone()
    }

    /// How many connections have been made.
    #[must_use]
    pub fn connections(&self) -> usize {
        lock(&self.record).connections
    }

    /// The events of one container so far, in order.
    ///
    /// # Errors
    /// When one of all events does not decode.
    pub fn events(&self, id: &str) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for received in self.received() {
            let event = received.event.map_err(Failure::new)?;
            if event.container() == id {
                events.push(event);
            }
        }
        Ok(events)
    }

    /// The same as words, see [`Event::word`].
    ///
    /// # Errors
    /// When one of all events does not decode.
    pub fn words(&self, id: &str) -> Result<Vec<String>> {
        Ok(self.events(id)?.iter().map(Event::word).collect())
    }

    /// Waits until the container's events satisfy a condition, and gives them.
    ///
    /// # Errors
    /// When they never do, with what came instead.
    pub async fn wait_for(
        &self,
        id: &str,
        what: &str,
        mut enough: impl FnMut(&[Event]) -> bool,
    ) -> Result<Vec<Event>> {
        let look = || {
            let events = self.events(id);
            let done = events.as_ref().is_ok_and(|events| enough(events)) || events.is_err();
            done.then_some(events)
        };
        match deadline::until_some(what, HANG, look).await {
            Ok(events) => events,
            Err(failure) => Err(failure.context(format!("after {:?}", self.words(id)?))),
        }
    }

    /// Waits for an event by its word.
    ///
    /// # Errors
    /// When it never comes.
    pub async fn wait_for_word(&self, id: &str, word: &str) -> Result<Vec<Event>> {
        let what = format!("event {word:?} of {id}");
        self.wait_for(id, &what, |events| events.iter().any(|event| event.word() == word)).await
    }
}

impl Drop for FakeContainerd {
    fn drop(&mut self) {
        self.close();
    }
}

async fn accept(
    listener: UnixListener,
    record: Arc<Mutex<Record>>,
    manner: watch::Receiver<Manner>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let number = {
            let mut record = lock(&record);
            record.connections += 1;
            record.connections - 1
        };
        connections.spawn(serve(stream, number, Arc::clone(&record), manner.clone()));
    }
}

/// Serves one connection; each call in turn, which is what keeps the order.
async fn serve(
    mut stream: UnixStream,
    number: usize,
    record: Arc<Mutex<Record>>,
    mut manner: watch::Receiver<Manner>,
) {
    loop {
        if manner.wait_for(|manner| *manner != Manner::Deaf).await.is_err() {
            return;
        }
        let Ok((stream_id, request)) = read_request(&mut stream).await else { return };
        let mut response = answer(&request, number, &record);
        let current = *manner.borrow();
        match current {
            Manner::Slow(delay) => tokio::time::sleep(delay).await,
            Manner::Silent => {
                if manner.wait_for(|manner| *manner != Manner::Silent).await.is_err() {
                    return;
                }
            }
            Manner::Refusing => response = refusal(Code::INTERNAL, "refused on purpose"),
            Manner::Prompt | Manner::Deaf => {}
        }
        if write_response(&mut stream, stream_id, &response).await.is_err() {
            return;
        }
    }
}

/// Records a Forward; refuses anything else, as containerd would.
fn answer(request: &Request, connection: usize, record: &Mutex<Record>) -> Response {
    if request.service != "containerd.services.events.ttrpc.v1.Events"
        || request.method != "Forward"
    {
        let text = format!("{}/{} is not served here", request.service, request.method);
        return refusal(Code::UNIMPLEMENTED, &text);
    }
    match ForwardRequest::parse_from_bytes(&request.payload) {
        Ok(forward) => {
            let envelope = forward.envelope.unwrap_or_default();
            lock(record).received.push(received(envelope, connection));
            let mut response = Response::new();
            response.status = Some(Status::new()).into();
            response
        }
        Err(error) => refusal(Code::INVALID_ARGUMENT, &error.to_string()),
    }
}

fn received(envelope: Envelope, connection: usize) -> Received {
    let event = match envelope.event.as_ref() {
        _ if envelope.timestamp.is_none() => Err("an envelope without time".to_owned()),
        Some(event) => Event::decode(&envelope.topic, event),
        None => Err("an envelope without event".to_owned()),
    };
    Received { event, namespace: envelope.namespace, topic: envelope.topic, connection }
}

fn refusal(code: Code, text: &str) -> Response {
    let mut status = Status::new();
    status.code = code.into();
    status.message = text.to_owned();
    let mut response = Response::new();
    response.status = Some(status).into();
    response
}

/// A frame: length and stream id in network order, type, flags; then the payload.
async fn read_request(stream: &mut UnixStream) -> std::io::Result<(u32, Request)> {
    let length = stream.read_u32().await?;
    let stream_id = stream.read_u32().await?;
    let _type_and_flags = stream.read_u16().await?;
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await?;
    Ok((stream_id, Request::parse_from_bytes(&payload).map_err(std::io::Error::other)?))
}

async fn write_response(
    stream: &mut UnixStream,
    id: u32,
    response: &Response,
) -> std::io::Result<()> {
    /// Message type 2, a response, and no flags.
    const RESPONSE: u16 = 0x0200;
    let payload = response.write_to_bytes().map_err(std::io::Error::other)?;
    let length = u32::try_from(payload.len()).map_err(std::io::Error::other)?;
    let mut frame = Vec::with_capacity(payload.len() + 10);
    frame.extend(length.to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend(RESPONSE.to_be_bytes());
    frame.extend(payload);
    stream.write_all(&frame).await
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}
