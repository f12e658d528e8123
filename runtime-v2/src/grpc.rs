//! A connection to a shim that speaks gRPC: unary calls over one HTTP/2 connection.
//!
//! Few shims do, and all the manager needs of gRPC is a request, an answer and a status; so this
//! is written on the HTTP/2 library itself.

use std::{io, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, client};
use http::{HeaderMap, Request};
use runtime_proto::{errdefs::Code, frame::MAX_PAYLOAD};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::timeout,
};

use crate::ttrpc::CallError;

/// Metadata key of the namespace (containerd pkg/namespaces/grpc.go).
const NAMESPACE_KEY: &str = "containerd-namespace";

/// A message is preceded by a byte that says whether it is compressed, and its length.
const PREFIX_LEN: usize = 5;

/// A handle on one connection; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct GrpcConnection {
    sender: client::SendRequest<Bytes>,
    namespace: String,
    closed: watch::Receiver<bool>,
    stop: Arc<watch::Sender<bool>>,
}

impl GrpcConnection {
    /// Takes over `stream`.
    ///
    /// # Errors
    /// When the peer does not speak HTTP/2.
    pub(crate) async fn new<S>(stream: S, namespace: String) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = client::handshake(stream).await.map_err(io::Error::other)?;
        let (closed_tx, closed) = watch::channel(false);
        let (stop, mut stopped) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "gRPC connection to a shim ended");
                },
                _ = stopped.wait_for(|stop| *stop) => {}
            }
            closed_tx.send_replace(true);
        });
        Ok(Self { sender, namespace, closed, stop: Arc::new(stop) })
    }

    /// Makes one unary call.
    ///
    /// # Errors
    /// One of [`CallError`].
    pub(crate) async fn call(
        &self,
        service: &str,
        method: &str,
        payload: &[u8],
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        if payload.len() > MAX_PAYLOAD {
            return Err(CallError::TooLarge(payload.len()));
        }
        let exchange = self.exchange(service, method, payload, limit);
        match limit {
            None => exchange.await,
            Some(limit) => {
                timeout(limit, exchange).await.map_err(|_| CallError::Deadline(limit))?
            }
        }
    }

    async fn exchange(
        &self,
        service: &str,
        method: &str,
        payload: &[u8],
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        let mut request = Request::post(format!("http://localhost/{service}/{method}"))
            .version(http::Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header(NAMESPACE_KEY, &self.namespace);
        if let Some(limit) = limit {
            // At most eight digits, by the protocol: milliseconds last a day.
            let millis = limit.as_millis().min(99_999_999);
            request = request.header("grpc-timeout", format!("{millis}m"));
        }
        let request = request.body(()).map_err(|error| CallError::Garbled(error.to_string()))?;
        let mut sender = self.sender.clone().ready().await.map_err(failed)?;
        let (answer, mut body) = sender.send_request(request, false).map_err(failed)?;
        // One that is refused before it was sent says why in its answer.
        let _ = body.send_data(prefixed(payload), true);
        let answer = answer.await.map_err(failed)?;
        let (head, body) = answer.into_parts();
        if !head.status.is_success() {
            return Err(CallError::Garbled(format!("HTTP status {}", head.status)));
        }
        // An answer without a body has its status in the head.
        status(&head.headers)?;
        read(body).await
    }

    /// Returns when the connection is closed, without keeping it open.
    pub(crate) fn when_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.clone();
        async move {
            // An error means that its task is gone, which is closed as well.
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Whether the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        self.stop.send_replace(true);
    }
}

fn prefixed(payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX_LEN + payload.len());
    bytes.put_u8(0);
    // Checked against the limit of messages before.
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
    bytes.freeze()
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(failed)?;
        if bytes.len() + data.len() > PREFIX_LEN + MAX_PAYLOAD {
            return Err(CallError::TooLarge(bytes.len() + data.len()));
        }
        bytes.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).map_err(failed)?;
    }
    if let Some(trailers) = body.trailers().await.map_err(failed)? {
        status(&trailers)?;
    }
    match bytes.get(..PREFIX_LEN) {
        Some([0, length @ ..]) => {
            let wanted = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            let message = bytes.split_off(PREFIX_LEN);
            if message.len() == wanted {
                return Ok(message);
            }
            Err(CallError::Garbled(format!("{} of {wanted} bytes", message.len())))
        }
        Some(_) => Err(CallError::Garbled("the answer is compressed".into())),
        None => Err(CallError::Garbled("an answer without a message".into())),
    }
}

/// The status in a head or in trailers, if it is there and not OK.
fn status(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(number) = text("grpc-status").and_then(|number| number.parse().ok()) else {
        return Ok(());
    };
    match Code::from_number(number) {
        None => Ok(()),
        Some(code) => {
            let message = percent_decode(text("grpc-message").unwrap_or_default());
            Err(CallError::Refused { code, message })
        }
    }
}

/// Messages travel in headers, with what cannot stand there as `%` and two digits.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|_| byte == b'%') {
            Some(value) => {
                bytes.push(value);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A stream that was reset is the end of that call only; anything else is that of the connection,
/// and of the shim behind it.
fn failed(error: h2::Error) -> CallError {
    match error.reason() {
        Some(reason) if error.is_reset() => {
            CallError::Refused { code: code_of(reason), message: error.to_string() }
        }
        _ => CallError::Closed,
    }
}

/// As gRPC's table of errors has it (grpc doc/PROTOCOL-HTTP2.md).
fn code_of(reason: h2::Reason) -> Code {
    match reason {
        h2::Reason::REFUSED_STREAM => Code::Unavailable,
        h2::Reason::CANCEL => Code::Canceled,
        h2::Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        h2::Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
