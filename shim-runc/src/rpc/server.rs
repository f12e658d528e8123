//! Serves one [`Service`] to containerd.
//!
//! Calls of one connection run side by side, as many as its budget allows. A call that changes something runs to its end
//! even if its caller goes away: half a Delete helps nobody. Any other ends with its connection or its deadline.

use std::{io, sync::Arc, time::Duration};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame::{self, Header},
    ttrpc::{Request, Response, Status},
};
use tokio::{
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Mutex, watch},
    time::sleep,
};

use super::{
    budget::{Budget, Permit, hung_up},
    message::{self, Incoming},
};
use crate::error::shorten;

/// How long nothing is accepted after accept(2) failed. It fails when descriptors have run out;
/// trying again at once would burn the time that ending calls need to give some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The longest text of a failure, in bytes. Failures quote what was asked and what an OCI runtime
/// said, either of which may fill a message by itself; an answer that does not fit is none, and its
/// caller waits for ever.
pub(super) const MAX_MESSAGE: usize = 32 << 10;

/// What a call is to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Changes something, and runs to its end.
    Changes,
    /// Looks at something, and may be ended at any time.
    Looks,
    /// Waits for something, for as long as it takes; may be ended at any time, and must hold on to next to nothing.
    Waits,
}

/// What a server serves.
pub trait Service: Send + Sync + 'static {
    /// What a call of this method is.
    fn kind(&self, method: &str) -> Kind;

    /// Carries out a call and returns the encoded answer.
    ///
    /// # Errors
    /// The status to answer; Unimplemented for services and methods that are not known.
    fn call(
        self: Arc<Self>,
        service: String,
        method: String,
        payload: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, Status>> + Send;
}

/// Accepts connections and serves them, for as long as it is polled. Connections go on.
pub async fn serve<S: Service>(listener: UnixListener, service: Arc<S>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_friend(&stream) => {
                tokio::spawn(connection(stream, Arc::clone(&service)));
            }
            Ok(_) => tracing::warn!("refused a connection of another user"),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Only who could do everything to us anyway may speak to us. containerd's own shims check the same.
fn is_friend(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| {
        peer.uid() == nix::unistd::geteuid().as_raw()
            && peer.gid() == nix::unistd::getegid().as_raw()
    })
}

pub(super) async fn connection<S: Service>(stream: UnixStream, service: Arc<S>) {
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let budget = Budget::new();
    // Dropped at the end of this function, which tells the calls that may be ended.
    let (_open, closed) = watch::channel(());
    while let Some((header, request)) = next(&mut reader).await {
        let begin = async {
            let Some((request, size)) = request? else { return Ok(()) };
            let kind = service.kind(&request.method);
            let permit = budget.admit(kind, size).await?;
            let closed = (kind != Kind::Changes).then(|| closed.clone());
            let (service, writer) = (Arc::clone(&service), Arc::clone(&writer));
            tokio::spawn(call(service, writer, header, request.into(), closed, permit));
            Ok(())
        };
        let begun = tokio::select! {
            biased;
            begun = begin => begun,
            () = hung_up(reader.as_ref()) => return,
        };
        if let Err(status) = begun {
            answer(&writer, header, Err(status)).await;
        }
    }
}

/// The next message of a connection, and the request in it, with its size; `None` when the connection is over.
async fn next(
    reader: &mut OwnedReadHalf,
) -> Option<(Header, Result<Option<(Request, usize)>, Status>)> {
    match message::read(reader).await {
        Ok(Some(Incoming::Whole(header, payload))) => {
            let request = request(header, &payload);
            Some((header, request.map(|request| request.map(|request| (request, payload.len())))))
        }
        Ok(Some(Incoming::TooLarge(header))) => {
            let message = format!("message of {} bytes is over 4 MiB", header.length);
            Some((header, Err(Code::ResourceExhausted.status(&message))))
        }
        Ok(None) => None,
        Err(error) => {
            tracing::debug!(%error, "connection broke");
            None
        }
    }
}

/// The request in a message; `None` for messages that are not for us.
pub(crate) fn request(header: Header, payload: &[u8]) -> Result<Option<Request>, Status> {
    if header.kind != frame::TYPE_REQUEST {
        // Streams are not served, and newer kinds of message are to be passed over.
        return Ok(None);
    }
    if header.stream_id.is_multiple_of(2) {
        return Err(Code::InvalidArgument.status("stream ids of clients are odd"));
    }
    Request::parse_from_bytes(payload)
        .map(Some)
        .map_err(|error| Code::InvalidArgument.status(&format!("undecodable request: {error}")))
}

/// What of a request is needed for as long as its call takes.
struct Asked {
    service: String,
    method: String,
    payload: Vec<u8>,
    /// In nanoseconds.
    limit: Option<u64>,
}

impl From<Request> for Asked {
    fn from(request: Request) -> Self {
        let limit = u64::try_from(request.timeout_nano).ok().filter(|nanos| *nanos > 0);
        let Request { service, method, payload, .. } = request;
        Self { service, method, payload, limit }
    }
}

/// Carries out a call and answers it. One that may be ended ends with its connection (`closed` errs
/// when that is gone) or its deadline; what changes something goes on, and the caller gives up by
/// itself.
async fn call<S: Service>(
    service: Arc<S>,
    writer: Arc<Mutex<OwnedWriteHalf>>,
    header: Header,
    asked: Asked,
    closed: Option<watch::Receiver<()>>,
    _permit: Permit,
) {
    let work = service.call(asked.service, asked.method, asked.payload);
    let result = match closed {
        None => work.await,
        Some(mut closed) => tokio::select! {
            result = work => result,
            () = passed(asked.limit) => Err(Code::DeadlineExceeded.status("")),
            _ = closed.changed() => return,
        },
    };
    answer(&writer, header, result).await;
}

/// Waits for a deadline, or for ever if there is none.
async fn passed(nanos: Option<u64>) {
    match nanos {
        Some(nanos) => sleep(Duration::from_nanos(nanos)).await,
        None => std::future::pending().await,
    }
}

/// Writes the answer of a call. The caller being gone is no error: it went.
async fn answer(writer: &Mutex<OwnedWriteHalf>, header: Header, result: Result<Vec<u8>, Status>) {
    if let Err(error) = try_answer(writer, header.stream_id, result).await {
        tracing::debug!(%error, "answer not delivered");
    }
}

async fn try_answer(
    writer: &Mutex<OwnedWriteHalf>,
    stream_id: u32,
    result: Result<Vec<u8>, Status>,
) -> io::Result<()> {
    let mut response = Response::new();
    match result {
        Ok(payload) if payload.len() > frame::MAX_PAYLOAD - 64 => {
            let status = Code::ResourceExhausted.status("the answer is over 4 MiB");
            response.status = Some(status).into();
        }
        Ok(payload) => response.payload = payload,
        Err(mut status) => {
            shorten(&mut status.message, MAX_MESSAGE);
            response.status = Some(status).into();
        }
    }
    let response = response.write_to_bytes()?;
    let mut writer = writer.lock().await;
    message::write(&mut *writer, stream_id, frame::TYPE_RESPONSE, &response).await
}
