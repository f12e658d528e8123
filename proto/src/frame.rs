//! The ten bytes in front of every ttrpc message.
//!
//! ```text
//!   0        4          8      9       10
//!   | length | stream id | type | flags | payload (length bytes) ...
//! ```
//! Integers are big-endian. Clients use odd stream ids. (Source: containerd/ttrpc, PROTOCOL.md.)

/// Bytes of a header.
pub const HEADER_LEN: usize = 10;
/// The largest payload that a peer accepts.
pub const MAX_PAYLOAD: usize = 4 << 20;

/// A unary request, or the opening of a stream.
pub const TYPE_REQUEST: u8 = 1;
/// The answer to a request.
pub const TYPE_RESPONSE: u8 = 2;
/// A message within a stream.
pub const TYPE_DATA: u8 = 3;

/// A decoded message header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload that follow.
    pub length: u32,
    /// The call this message belongs to.
    pub stream_id: u32,
    /// One of the `TYPE_` constants; others come from peers newer than this code.
    pub kind: u8,
    /// Stream flags; 0 for unary calls.
    pub flags: u8,
}

impl Header {
    /// Reads a header.
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Self {
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind, flags] = bytes;
        Self {
            length: u32::from_be_bytes([l0, l1, l2, l3]),
            stream_id: u32::from_be_bytes([s0, s1, s2, s3]),
            kind,
            flags,
        }
    }

    /// Writes a header.
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream_id.to_be_bytes();
        [l0, l1, l2, l3, s0, s1, s2, s3, self.kind, self.flags]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_bytes_are_as_on_the_wire() {
        let header = Header { length: 0x0102, stream_id: 7, kind: TYPE_REQUEST, flags: 0 };
        let bytes = [0, 0, 1, 2, 0, 0, 0, 7, 1, 0];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(bytes), header);
    }
}
