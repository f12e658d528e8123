//! Asks a live shim which versions of the task API it speaks.
//!
//! It may be of an older make than this binary: what it speaks is not what we could. Done with
//! blocking calls, in the process that is about to end anyway.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    frame::{self, HEADER_LEN, Header, MAX_PAYLOAD},
    task::{ConnectRequest, SERVICE_V2, SERVICE_V3},
    ttrpc::{Request, Response},
};

/// How long a live shim may take to answer both questions. It answers at once; one that does not is stopped or
/// wedged, and its group cannot be joined.
const LIMIT: Duration = Duration::from_secs(5);

/// Which versions a shim speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Speaks {
    /// Task API 2.
    pub v2: bool,
    /// Task API 3.
    pub v3: bool,
}

/// Asks over a fresh connection.
///
/// # Errors
/// When it does not answer, or hangs up.
pub(super) fn ask(mut stream: UnixStream, id: &str) -> io::Result<Speaks> {
    stream.set_write_timeout(Some(LIMIT))?;
    let deadline = Instant::now() + LIMIT;
    let v3 = knows(&mut stream, 1, SERVICE_V3, id, deadline)?;
    let v2 = knows(&mut stream, 3, SERVICE_V2, id, deadline)?;
    if v2 || v3 {
        Ok(Speaks { v2, v3 })
    } else {
        Err(io::Error::other("it speaks neither version 2 nor 3 of the task API"))
    }
}

fn knows(
    stream: &mut UnixStream,
    stream_id: u32,
    service: &str,
    id: &str,
    deadline: Instant,
) -> io::Result<bool> {
    let mut connect = ConnectRequest::new();
    id.clone_into(&mut connect.id);
    let mut request = Request::new();
    service.clone_into(&mut request.service);
    "Connect".clone_into(&mut request.method);
    request.payload = connect.write_to_bytes()?;
    request.timeout_nano = i64::try_from(LIMIT.as_nanos()).unwrap_or(i64::MAX);
    let payload = request.write_to_bytes()?;
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let header = Header { length, stream_id, kind: frame::TYPE_REQUEST, flags: 0 };
    stream.write_all(&header.encode())?;
    stream.write_all(&payload)?;
    let response = answer(&mut Until { stream, deadline }, stream_id)?;
    let code = response.status.as_ref().and_then(|status| Code::from_number(status.code.value()));
    if code == Some(Code::Unavailable) {
        return Err(io::Error::new(io::ErrorKind::ConnectionReset, "it is ending"));
    }
    // ttrpc-rust says InvalidArgument of a service it does not know; an id is never invalid here.
    Ok(!matches!(code, Some(Code::Unimplemented | Code::InvalidArgument)))
}

/// A stream that is read until a point in time, however many pieces arrive until then.
struct Until<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

/// The answer to one request, among whatever else the peer says.
pub(crate) fn answer(stream: &mut impl Read, stream_id: u32) -> io::Result<Response> {
    loop {
        let mut head = [0; HEADER_LEN];
        stream.read_exact(&mut head)?;
        let header = Header::decode(head);
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if length > MAX_PAYLOAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is over 4 MiB"));
        }
        let mut payload = Vec::new();
        let read = stream.take(u64::from(header.length)).read_to_end(&mut payload)?;
        if read < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if header.stream_id == stream_id {
            return Response::parse_from_bytes(&payload).map_err(io::Error::from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_that_only_talks_of_other_things_is_given_up() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let talker = std::thread::spawn(move || {
            let other = Header { length: 0, stream_id: 7, kind: frame::TYPE_RESPONSE, flags: 0 };
            // Until nobody listens any more.
            while (&theirs).write_all(&other.encode()).is_ok() {}
        });
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = answer(&mut Until { stream: &ours, deadline }, 1).unwrap_err();
        let late = matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock);
        assert!(late, "{error}");
        drop(ours);
        talker.join().unwrap();
    }
}
