//! Serves one [`Service`] to containerd.
//!
//! Calls of one connection run side by side. A call that changes something runs to its end even if
//! its caller goes away: half a Delete helps nobody. A call that only waits ends with its
//! connection or its deadline.

use std::{io, sync::Arc, time::Duration};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame::{self, Header},
    ttrpc::{Request, Response, Status},
};
use tokio::{
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::{Mutex, watch},
    time::sleep,
};

use super::message::{self, Incoming};
use crate::error::shorten;

/// How long nothing is accepted after accept(2) failed. It fails when descriptors have run out;
/// trying again at once would burn the time that ending calls need to give some back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The longest text of a failure, in bytes. Failures quote what was asked and what an OCI runtime
/// said, either of which may fill a message by itself; an answer that does not fit is none, and its
/// caller waits for ever.
const MAX_MESSAGE: usize = 32 << 10;

/// What a server serves.
pub trait Service: Send + Sync + 'static {
    /// Whether a call of this method only waits, and may be ended at any time.
    fn only_waits(&self, method: &str) -> bool;

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

async fn connection<S: Service>(stream: UnixStream, service: Arc<S>) {
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    // Dropped at the end of this function, which tells the calls that only wait.
    let (_open, closed) = watch::channel(());
    loop {
        match message::read(&mut reader).await {
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "connection broke");
                return;
            }
            Ok(Some(Incoming::TooLarge(header))) => {
                let message = format!("message of {} bytes is over 4 MiB", header.length);
                answer(&writer, header, Err(Code::ResourceExhausted.status(&message))).await;
            }
            Ok(Some(Incoming::Whole(header, payload))) => match request(header, &payload) {
                Ok(Some(request)) => {
                    let only_waits = service.only_waits(&request.method);
                    let closed = only_waits.then(|| closed.clone());
                    let (service, writer) = (Arc::clone(&service), Arc::clone(&writer));
                    tokio::spawn(call(service, writer, header, request, closed));
                }
                Ok(None) => {}
                Err(status) => answer(&writer, header, Err(status)).await,
            },
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

/// Carries out a call and answers it. One that only waits ends with its connection (`closed` errs
/// when that is gone) or its deadline; what changes something goes on, and the caller gives up by
/// itself.
async fn call<S: Service>(
    service: Arc<S>,
    writer: Arc<Mutex<OwnedWriteHalf>>,
    header: Header,
    request: Request,
    closed: Option<watch::Receiver<()>>,
) {
    let limit = u64::try_from(request.timeout_nano).ok().filter(|nanos| *nanos > 0);
    let work = service.call(request.service, request.method, request.payload);
    let result = match closed {
        None => work.await,
        Some(mut closed) => tokio::select! {
            result = work => result,
            () = passed(limit) => Err(Code::DeadlineExceeded.status("")),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses everything, in the words of the request.
    struct Refuses;

    impl Service for Refuses {
        fn only_waits(&self, _: &str) -> bool {
            false
        }

        async fn call(
            self: Arc<Self>,
            _: String,
            method: String,
            _: Vec<u8>,
        ) -> Result<Vec<u8>, Status> {
            Err(Code::InvalidArgument.status(&format!("{method:?}")))
        }
    }

    #[tokio::test]
    async fn a_failure_that_quotes_too_much_is_answered_all_the_same() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        tokio::spawn(connection(theirs, Arc::new(Refuses)));
        let mut request = Request::new();
        // Twice the size, once it is quoted.
        request.method = "\u{0}é".repeat(1 << 20);
        let request = request.write_to_bytes().unwrap();
        message::write(&mut ours, 1, frame::TYPE_REQUEST, &request).await.unwrap();
        let Some(Incoming::Whole(header, payload)) = message::read(&mut ours).await.unwrap() else {
            panic!("no answer");
        };
        let status = Response::parse_from_bytes(&payload).unwrap().status.unwrap();
        assert_eq!((header.stream_id, status.code.value()), (1, Code::InvalidArgument.number()));
        assert!(status.message.len() <= MAX_MESSAGE && status.message.ends_with("[...]"));
    }
}
