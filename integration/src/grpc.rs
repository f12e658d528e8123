//! A gRPC client that can be told to do what no proper client does.

use std::future::poll_fn;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use ttrpc::Code;

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};

/// The header that names a namespace.
pub const NAMESPACE: &str = "containerd-namespace";

/// One connection.
#[derive(Debug)]
pub struct Grpc {
    sender: SendRequest<Bytes>,
    connection: JoinHandle<()>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The code; OK for a message.
    pub code: Code,
    /// The text of a refusal.
    pub text: String,
    /// The message, without its prefix.
    pub message: Bytes,
}

impl Grpc {
    /// Connects to a socket.
    ///
    /// # Errors
    /// When nobody speaks HTTP/2 there.
    pub async fn connect(socket: &Path) -> Result<Self> {
        // It takes a thousand small answers at once.
        Self::connect_as(socket, h2::client::Builder::new().data_frame_budget(16 << 20)).await
    }

    /// The same with more room for what comes, as clients come to have that are sent much.
    ///
    /// # Errors
    /// When nobody speaks HTTP/2 there.
    pub async fn connect_roomy(socket: &Path) -> Result<Self> {
        const ROOM: u32 = 4 << 20;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(ROOM).initial_connection_window_size(ROOM);
        Self::connect_as(socket, &builder).await
    }

    async fn connect_as(socket: &Path, builder: &h2::client::Builder) -> Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        let (sender, connection) = builder.handshake(stream).await?;
        // Ends with the socket; that it did is seen by the calls.
        let connection = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, connection })
    }

    /// A unary call, as it should be.
    ///
    /// # Errors
    /// When the connection fails; a refusal is an answer.
    pub async fn unary(&self, path: &str, namespace: &str, message: &[u8]) -> Result<Answer> {
        self.call(path, &[(NAMESPACE, namespace)], prefixed(message)).await
    }

    /// A unary call whose answers are counted, in bytes, and not kept; it has to succeed.
    ///
    /// # Errors
    /// When it fails.
    pub async fn drained(&self, path: &str, namespace: &str, message: &[u8]) -> Result<usize> {
        let request = request(path, &[(NAMESPACE, namespace)])?;
        let mut sender = self.sender.clone().ready().await?;
        let (response, stream) = sender.send_request(request, false)?;
        let sending = tokio::spawn(send(stream, prefixed(message)));
        let drained = async {
            let (parts, mut body) = response.await.context(path.to_owned())?.into_parts();
            let mut count = 0;
            while let Some(part) = body.data().await {
                let part = part?;
                body.flow_control().release_capacity(part.len())?;
                count += part.len();
            }
            let trailers = body.trailers().await?.unwrap_or(parts.headers);
            let answer = answer(&trailers, Bytes::new())?;
            if answer.code == Code::OK {
                return Ok(count);
            }
            Err(Failure::new(format!("{path}: {:?}: {}", answer.code, answer.text)))
        };
        let drained = tokio::time::timeout(HANG, drained).await;
        sending.abort();
        drained.map_err(|_| Failure::new(format!("{path} is not answered")))?
    }

    /// A call with these headers and this body, whatever they are.
    ///
    /// # Errors
    /// When the connection fails; a refusal is an answer.
    pub async fn call(&self, path: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Answer> {
        let answered = tokio::time::timeout(HANG, self.exchange(path, headers, body)).await;
        answered.map_err(|_| Failure::new(format!("{path} is not answered")))?
    }

    async fn exchange(&self, path: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Answer> {
        let request = request(path, headers)?;
        let mut sender = self.sender.clone().ready().await?;
        let (response, stream) = sender.send_request(request, false)?;
        let sending = tokio::spawn(send(stream, body));
        let outcome = async {
            let (parts, body) = response.await.context(path.to_owned())?.into_parts();
            if parts.headers.contains_key("grpc-status") {
                return answer(&parts.headers, Bytes::new());
            }
            let (bytes, trailers) = receive(body).await?;
            answer(&trailers, bytes)
        };
        let outcome = outcome.await;
        // A refusal may come before all was sent, and then nobody takes the rest.
        sending.abort();
        outcome
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn request(path: &str, headers: &[(&str, &str)]) -> Result<Request<()>> {
    let mut request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Ok(request.body(())?)
}

/// Sends a body as fast as the other side takes it.
async fn send(mut stream: h2::SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else { return };
        let part = body.split_to(room.min(body.len()));
        if stream.send_data(part, false).is_err() {
            return;
        }
    }
    // A stream that has ended already wants no end.
    let _ = stream.send_data(Bytes::new(), true);
}

async fn receive(mut body: RecvStream) -> Result<(Bytes, HeaderMap)> {
    let mut bytes = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        bytes.extend_from_slice(&part);
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    Ok((bytes.freeze(), trailers))
}

fn answer(headers: &HeaderMap, mut bytes: Bytes) -> Result<Answer> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = text("grpc-status").and_then(|number| number.parse().ok());
    let code = number.and_then(<Code as protobuf::Enum>::from_i32);
    let code = code.ok_or_else(|| Failure::new(format!("no status in {headers:?}")))?;
    let message = bytes.split_off(bytes.len().min(PREFIX));
    Ok(Answer { code, text: text("grpc-message").unwrap_or_default().to_owned(), message })
}

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A message as it travels.
#[must_use]
pub fn prefixed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

/// A field of a message that is text, bytes, or a message itself.
#[must_use]
pub fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = value.len();
    loop {
        let [low, ..] = length.to_le_bytes();
        length >>= 7;
        let more = if length > 0 { 0x80 } else { 0 };
        bytes.push(low & 0x7f | more);
        if length == 0 {
            break;
        }
    }
    bytes.extend_from_slice(value);
    bytes
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Calls that wait for an answer, on one connection. Dropping them takes them back.
#[derive(Debug)]
pub struct Calls {
    tasks: Vec<JoinHandle<Result<Answer>>>,
    /// Kept open as long as they wait.
    _connection: std::sync::Arc<Grpc>,
}

impl Calls {
    /// Begins many equal calls at the same time.
    #[must_use]
    pub fn begin(grpc: Grpc, count: usize, path: &str, namespace: &str, message: &[u8]) -> Self {
        let grpc = std::sync::Arc::new(grpc);
        let call = |_| {
            let (grpc, path, namespace, message) =
                (grpc.clone(), path.to_owned(), namespace.to_owned(), message.to_vec());
            tokio::spawn(async move { grpc.unary(&path, &namespace, &message).await })
        };
        let tasks = (0..count).map(call).collect();
        Self { tasks, _connection: grpc }
    }

    /// How many have been answered.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_finished()).count()
    }

    /// All answers.
    ///
    /// # Errors
    /// When one does not come.
    pub async fn all(mut self) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(self.tasks.len());
        for task in std::mem::take(&mut self.tasks) {
            let limited = tokio::time::timeout(HANG + Duration::from_secs(1), task).await;
            answers.push(limited.map_err(|_| Failure::new("a call is not answered"))???);
        }
        Ok(answers)
    }
}
