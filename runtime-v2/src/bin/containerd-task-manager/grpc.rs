//! What the gRPC face is made of: headers, limits, the way from bytes to a call and back.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::HeaderMap;
use prost::Message;
use tokio::sync::mpsc;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{BoxFuture, http},
    server::{Grpc, UnaryService},
};
use tonic_prost::ProstCodec;

/// Names the namespace of a call (containerd pkg/namespaces/grpc.go).
pub(crate) const NAMESPACE_HEADER: &str = "containerd-namespace";

/// Names the lease that keeps what a call makes (containerd core/leases/grpc.go).
pub(crate) const LEASE_HEADER: &str = "containerd-lease";

/// The largest message, as containerd has it (containerd defaults/defaults.go).
pub(crate) const MAX_MESSAGE: usize = 16 << 20;

/// The largest list of headers. The text of a status travels in one, and holds what an OCI runtime
/// has said.
pub(crate) const MAX_HEADERS: u32 = 1 << 20;

/// What one stream may have under way unread. HTTP/2 counts bytes and the library counts frames
/// too, and closes a connection that holds too many small ones: 2.5 MB worth at this window of the
/// connection, 256 bytes each. So a stream must be full before that, even of events, or a client
/// that does not read would lose its connection in place of being waited for.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;

/// The same of all streams of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 5 << 20;

/// Serves one unary call: decodes its request, and encodes what `handler` makes of it.
pub(crate) async fn unary<A, R, H, F>(
    request: http::Request<Body>,
    handler: H,
) -> http::Response<Body>
where
    A: Message + Default + Send + 'static,
    R: Message + Send + 'static,
    H: FnOnce(A) -> F + Send + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    let limit = deadline(request.headers());
    let mut grpc = Grpc::new(ProstCodec::<R, A>::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let mut unary = Unary { handler: Some(handler), limit };
    let answer = grpc.unary(&mut unary, request).await;
    // One that never got to its handler was refused by the codec.
    if unary.handler.is_some() { as_grpc_go(answer) } else { answer }
}

/// Refusals of messages that are too large, with the code that containerd gives them.
fn as_grpc_go(answer: http::Response<Body>) -> http::Response<Body> {
    let refusal = answer.extensions().get::<Status>();
    match refusal.filter(|status| status.code() == Code::OutOfRange) {
        Some(status) => Status::resource_exhausted(status.message()).into_http(),
        None => answer,
    }
}

/// A handler as tonic wants it.
struct Unary<H> {
    handler: Option<H>,
    limit: Option<Duration>,
}

impl<A, R, H, F> UnaryService<A> for &mut Unary<H>
where
    A: Send + 'static,
    R: Send + 'static,
    H: FnOnce(A) -> F + Send + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    type Response = R;
    type Future = BoxFuture<tonic::Response<R>, Status>;

    fn call(&mut self, request: tonic::Request<A>) -> Self::Future {
        let (handler, limit) = (self.handler.take(), self.limit);
        Box::pin(async move {
            let Some(handler) = handler else {
                return Err(Status::internal("a unary call has one request"));
            };
            let late = || Status::deadline_exceeded("context deadline exceeded: deadline exceeded");
            let answering = handler(request.into_inner());
            let answer = match limit {
                None => answering.await,
                // Timers have a resolution, within which much can be done.
                Some(Duration::ZERO) => Err(late()),
                Some(limit) => {
                    tokio::time::timeout(limit, answering).await.unwrap_or_else(|_| Err(late()))
                }
            };
            answer.map(tonic::Response::new)
        })
    }
}

/// How long the caller waits, if it says so. A header nobody can read is no limit, as gRPC has it.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    /// The most digits a value may have.
    const DIGITS: usize = 8;
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > DIGITS || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// An error of the manager as a status. Its text ends with its class, as containerd's do.
pub(crate) fn status(error: &runtime_v2::Error) -> Status {
    let kind = error.kind();
    Status::new(Code::from_i32(kind.number()), kind.describe(&error.to_string()))
}

/// The messages of a client's stream, one after another.
pub(crate) struct Requests<T>(pub(crate) mpsc::Receiver<T>);

impl<T> tonic::codegen::tokio_stream::Stream for Requests<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            deadline(&headers)
        };
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(read("5m"), Some(Duration::from_millis(5)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        for bad in ["", "S", "1", "123456789S", "-1S", "1x", "+1S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }

    #[test]
    fn errors_keep_their_class_and_end_with_it() {
        let error = runtime_v2::Error::new(runtime_v2::Code::NotFound, "task a/b not found");
        let status = status(&error);
        assert_eq!((status.code(), status.message()), (Code::NotFound, "task a/b not found"));
        let error = runtime_v2::Error::new(runtime_v2::Code::AlreadyExists, "exec e");
        assert_eq!(super::status(&error).message(), "exec e: already exists");
    }
}
