//! One connection, one call at a time: what publishing events takes.

use std::{fmt, io, path::PathBuf, time::Duration};

use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame,
    ttrpc::{Request, Response},
};
use tokio::{net::UnixStream, time::timeout};

use super::message::{self, Incoming};

/// A connection that is made when it is needed and made again when it broke.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    next_stream_id: u32,
}

/// Why a call failed.
#[derive(Debug)]
pub enum CallError {
    /// There was no answer.
    Transport(io::Error),
    /// The peer answered with an error.
    Status(Code, String),
    /// The call cannot be sent, by this connection or another.
    Unsendable(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Transport(error) => error.fmt(f),
            CallError::Status(code, message) => write!(f, "{message} ({code})"),
            CallError::Unsendable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for CallError {}

impl Client {
    /// A client of the socket at `address`, a path with or without `unix://`.
    pub fn new(address: &str) -> Self {
        let path = address.strip_prefix("unix://").unwrap_or(address);
        Self { path: path.into(), connection: None }
    }

    /// Calls a method and waits for its answer, within `limit` for each of at most two attempts:
    /// a connection that was kept may have died since, which only its use shows.
    ///
    /// # Errors
    /// [`CallError`]; after a transport error the connection is closed.
    pub async fn call(
        &mut self,
        service: &str,
        method: &str,
        payload: &[u8],
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let kept = self.connection.is_some();
        match self.attempt(service, method, payload, limit).await {
            Err(CallError::Transport(error)) if kept && error.kind() != io::ErrorKind::TimedOut => {
                self.attempt(service, method, payload, limit).await
            }
            done => done,
        }
    }

    async fn attempt(
        &mut self,
        service: &str,
        method: &str,
        payload: &[u8],
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let mut request = Request::new();
        service.clone_into(&mut request.service);
        method.clone_into(&mut request.method);
        request.payload = payload.to_vec();
        request.timeout_nano = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
        let request =
            request.write_to_bytes().map_err(|error| CallError::Unsendable(error.to_string()))?;
        if request.len() > frame::MAX_PAYLOAD {
            let size = request.len();
            return Err(CallError::Unsendable(format!("message of {size} bytes is over 4 MiB")));
        }
        let exchange = async {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                none => none.insert(Connection {
                    stream: UnixStream::connect(&self.path).await?,
                    next_stream_id: 1,
                }),
            };
            connection.exchange(&request).await
        };
        let answer = match timeout(limit, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let answer = answer.inspect_err(|_| self.connection = None);
        let mut response = answer.map_err(CallError::Transport)?;
        match response.status.as_ref().and_then(|status| {
            Some((Code::from_number(status.code.value())?, status.message.clone()))
        }) {
            Some((code, message)) => Err(CallError::Status(code, message)),
            None => Ok(std::mem::take(&mut response.payload)),
        }
    }
}

impl Connection {
    async fn exchange(&mut self, request: &[u8]) -> io::Result<Response> {
        let stream_id = self.next_stream_id;
        self.next_stream_id = stream_id.checked_add(2).ok_or_else(|| {
            io::Error::new(io::ErrorKind::ConnectionAborted, "stream ids are used up")
        })?;
        message::write(&mut self.stream, stream_id, frame::TYPE_REQUEST, request).await?;
        loop {
            match message::read(&mut self.stream).await? {
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(Incoming::Whole(header, payload)) if header.stream_id == stream_id => {
                    return Response::parse_from_bytes(&payload).map_err(io::Error::from);
                }
                // The answer to a call that timed out earlier.
                Some(Incoming::Whole(..) | Incoming::TooLarge(_)) => {}
            }
        }
    }
}
