//! How a call of a shim fails.

use std::fmt;

use ttrpc::Code;

/// Why a call gave no answer.
#[derive(Debug, Clone)]
pub enum CallError {
    /// The shim refused.
    Status {
        /// The gRPC code.
        code: Code,
        /// The text.
        message: String,
    },
    /// The connection ended before the answer.
    Closed,
    /// Anything of the client itself.
    Client(String),
}

impl CallError {
    /// The code, when the shim said one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Closed | Self::Client(_) => None,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { code, message } => write!(f, "{code:?}: {message}"),
            Self::Closed => f.write_str("the connection closed"),
            Self::Client(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for CallError {}

impl From<ttrpc::Error> for CallError {
    fn from(error: ttrpc::Error) -> Self {
        match error {
            ttrpc::Error::RpcStatus(status) => {
                Self::Status { code: status.code(), message: status.message }
            }
            ttrpc::Error::RemoteClosed
            | ttrpc::Error::LocalClosed
            | ttrpc::Error::Eof
            | ttrpc::Error::Socket(_) => Self::Closed,
            // What the library says of a call that comes just as the connection ends has no kind of its own.
            ttrpc::Error::Others(text) if text.ends_with("channel closed") => Self::Closed,
            other => Self::Client(other.to_string()),
        }
    }
}
