//! ttrpc over any byte stream: a client connection that knows when it closes, and a small server.
//!
//! Why not the published client: the manager must tell a deadline, a refusal and a broken
//! connection apart by type, must learn of a broken connection without having a call in flight,
//! and one call's deadline must never cost the connection that other tasks share.

mod connection;
mod server;

pub use connection::Connection;
pub use server::{Answer, Client, Handler, serve, serve_connection};

use runtime_proto::{errdefs::Code, ttrpc::Status};

/// Why a call gave no answer, or not the wanted one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer answered with an error.
    #[error("{message}")]
    Refused {
        /// Its class.
        code: Code,
        /// Its text, as the peer worded it.
        message: String,
    },
    /// The connection is, or became, closed; whether the peer acted on the call is unknown.
    #[error("the connection to the shim is closed")]
    Closed,
    /// No answer in time; whether the peer acted on the call is unknown.
    #[error("no answer within {0:?}")]
    Deadline(std::time::Duration),
    /// The request is larger than a peer accepts and was not sent.
    #[error("a message of {0} bytes is larger than the limit of {max} bytes", max = runtime_proto::frame::MAX_PAYLOAD)]
    TooLarge(usize),
    /// The request cannot be encoded or the answer not decoded.
    #[error("cannot read or write the message: {0}")]
    Garbled(String),
}

impl CallError {
    /// The class of this error.
    pub fn code(&self) -> Code {
        match self {
            CallError::Refused { code, .. } => *code,
            CallError::Closed => Code::Unavailable,
            CallError::Deadline(_) => Code::DeadlineExceeded,
            CallError::TooLarge(_) => Code::ResourceExhausted,
            CallError::Garbled(_) => Code::Internal,
        }
    }

    /// As a status, for a peer.
    pub fn status(&self) -> Status {
        self.code().status(&self.to_string())
    }
}
