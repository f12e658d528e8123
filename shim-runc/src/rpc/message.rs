//! One ttrpc message on a stream.

use std::io;

use runtime_proto::frame::{HEADER_LEN, Header, MAX_PAYLOAD};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A message read.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Whole(Header, Vec<u8>),
    /// The head of one whose payload was too large to keep, and was passed over.
    TooLarge(Header),
}

/// Reads the next message; `None` at the end of the stream.
///
/// # Errors
/// When the stream breaks, also in the middle of a message.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Incoming>> {
    let mut head = [0; HEADER_LEN];
    let first = stream.read(&mut head).await?;
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut head[first..]).await?;
    let header = Header::decode(head);
    let length = usize::try_from(header.length).unwrap_or(usize::MAX);
    if length > MAX_PAYLOAD {
        let mut rest = stream.take(u64::from(header.length));
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        return Ok(Some(Incoming::TooLarge(header)));
    }
    // Grows as bytes arrive: a peer that announces much and sends nothing costs nothing.
    let mut payload = Vec::with_capacity(length.min(4096));
    let read = stream.take(u64::from(header.length)).read_to_end(&mut payload).await?;
    if read < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(Incoming::Whole(header, payload)))
}

/// Writes a message.
///
/// # Errors
/// When the stream breaks, or the payload is larger than peers accept.
pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    stream_id: u32,
    kind: u8,
    payload: &[u8],
) -> io::Result<()> {
    let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "message over 4 MiB");
    if payload.len() > MAX_PAYLOAD {
        return Err(too_large());
    }
    let length = u32::try_from(payload.len()).map_err(|_| too_large())?;
    let mut message = Vec::with_capacity(HEADER_LEN + payload.len());
    message.extend_from_slice(&Header { length, stream_id, kind, flags: 0 }.encode());
    message.extend_from_slice(payload);
    stream.write_all(&message).await
}
