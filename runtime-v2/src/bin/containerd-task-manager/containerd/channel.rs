//! A connection to the containerd behind, made when it is first needed and made anew when it
//! breaks.
//!
//! Every client's connection has one of its own. Were all to share one, a client that does not
//! read its stream would fill the window that the others' streams go through.

use std::{
    io,
    path::Path,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Request, Response, Uri,
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, sync::Mutex, time::timeout};
use tonic::{Status, body::Body};

use crate::grpc::{CONNECTION_WINDOW, MAX_HEADERS, STREAM_WINDOW};

/// A local socket accepts at once, or its process is stuck; this is for a full queue.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// HTTP/2 wants an authority where a Unix socket has none; this is what gRPC clients send.
const ORIGIN: &str = "http://localhost";

/// A connection that mends itself.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    address: Arc<Path>,
    /// Held while connecting, so that many calls at once make one connection.
    current: Mutex<Option<SendRequest<Body>>>,
}

impl Channel {
    /// A channel to the socket at `address`. Nothing is connected yet.
    pub(crate) fn new(address: Arc<Path>) -> Self {
        Self { inner: Arc::new(Inner { address, current: Mutex::new(None) }) }
    }

    /// Sends a request as it is. One that never left because the connection was closed is sent
    /// again on a new one, once.
    ///
    /// # Errors
    /// `Unavailable` while containerd is away.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Status> {
        let request = with_authority(request);
        let mut failed = match self.sender().await?.try_send_request(request).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        let Some(unsent) = failed.take_message() else {
            return Err(self.unavailable(&failed.into_error()));
        };
        let sent = self.sender().await?.send_request(unsent).await;
        sent.map_err(|error| self.unavailable(&error))
    }

    async fn sender(&self) -> Result<SendRequest<Body>, Status> {
        let mut current = self.inner.current.lock().await;
        if let Some(sender) = current.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let connecting = timeout(CONNECT_TIMEOUT, connect(&self.inner.address));
        let connected = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let sender = connected.map_err(|error| self.unavailable(&error))?;
        *current = Some(sender.clone());
        Ok(sender)
    }

    fn unavailable(&self, why: &(dyn std::error::Error + 'static)) -> Status {
        let address = self.inner.address.display();
        let text = format!("containerd at {address}: {}: unavailable", Causes(why));
        Status::unavailable(text)
    }
}

/// An error with all its causes: hyper's own text leaves out what happened.
struct Causes<'a>(&'a (dyn std::error::Error + 'static));

impl std::fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

async fn connect(address: &Path) -> io::Result<SendRequest<Body>> {
    let stream = UnixStream::connect(address).await?;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_header_list_size(MAX_HEADERS);
    builder.initial_stream_window_size(STREAM_WINDOW);
    builder.initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // Ends when the last sender and the last stream are gone, or containerd is.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to containerd ended");
        }
    });
    Ok(sender)
}

/// The request with an absolute address, which HTTP/2 needs.
fn with_authority(mut request: Request<Body>) -> Request<Body> {
    let uri = request.uri();
    if uri.scheme().is_none() || uri.authority().is_none() {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // A path that was part of a valid address is one here too.
        if let Ok(absolute) = format!("{ORIGIN}{path}").parse::<Uri>() {
            *request.uri_mut() = absolute;
        }
    }
    request
}

/// As a service of tonic's, for calls of this daemon's own.
impl tonic::codegen::Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = Status;
    type Future = tonic::codegen::BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let channel = self.clone();
        Box::pin(async move { channel.send(request).await })
    }
}
