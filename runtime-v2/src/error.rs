//! The one error type of this crate: a kind that is an RPC code, what was being done and for
//! which id, and the cause.

use std::{error, fmt, io};

use runtime_proto::errdefs::Code;

use crate::ttrpc::CallError;

/// Result of anything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn error::Error + Send + Sync>;

/// What failed (`context`), how a caller should understand it (`kind`), and why (`source`).
#[derive(Debug)]
pub struct Error {
    kind: Code,
    context: String,
    source: Option<Source>,
}

impl Error {
    /// An error without a deeper cause.
    pub fn new(kind: Code, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// An error that another one caused.
    pub fn caused(kind: Code, context: impl Into<String>, source: impl Into<Source>) -> Self {
        Self { kind, context: context.into(), source: Some(source.into()) }
    }

    /// A failed system call; its kind follows the errno.
    pub fn io(context: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = match source.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::AlreadyExists => Code::AlreadyExists,
            io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            io::ErrorKind::TimedOut => Code::DeadlineExceeded,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            io::ErrorKind::ConnectionRefused => Code::Unavailable,
            io::ErrorKind::OutOfMemory => Code::ResourceExhausted,
            _ if is_out_of_descriptors(&source) => Code::ResourceExhausted,
            _ => Code::Unknown,
        };
        Self::caused(kind, context, source)
    }

    /// A call to a shim that did not succeed; its kind is the code the shim gave.
    pub fn call(context: impl Into<String>, source: CallError) -> Self {
        Self::caused(source.code(), context, source)
    }

    /// The class of this error.
    pub fn kind(&self) -> Code {
        self.kind
    }

    /// The same error told as another class, for callers that know better what it means.
    #[must_use]
    pub fn with_kind(mut self, kind: Code) -> Self {
        self.kind = kind;
        self
    }

    /// The same error with what was being done around it put in front.
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.context = format!("{outer}: {}", self.context);
        self
    }

    /// Whether the connection to the shim was gone, as opposed to the shim having said no.
    pub fn is_closed(&self) -> bool {
        matches!(self.call_error(), Some(CallError::Closed))
    }

    /// Whether a call was made, as opposed to something before it.
    pub(crate) fn is_call(&self) -> bool {
        self.call_error().is_some()
    }

    fn call_error(&self) -> Option<&CallError> {
        self.source.as_ref()?.downcast_ref()
    }
}

/// The standard library has no word for it.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(nix::errno::Errno::from_raw);
    matches!(errno, Some(nix::errno::Errno::EMFILE | nix::errno::Errno::ENFILE))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_outer_thing_first_and_the_cause_last() {
        let refused = CallError::Refused { code: Code::NotFound, message: "no c1".into() };
        let error = Error::call("delete task ns/c1", refused).within("retry");
        assert_eq!(error.to_string(), "retry: delete task ns/c1: no c1");
        assert_eq!(error.kind(), Code::NotFound);
        assert!(!error.is_closed());
        assert!(Error::call("x", CallError::Closed).is_closed());
    }

    #[test]
    fn what_has_run_out_is_told_apart() {
        let full = io::Error::from_raw_os_error(nix::errno::Errno::ENOSPC as i32);
        assert_eq!(Error::io("write", full).kind(), Code::ResourceExhausted);
        let fds = io::Error::from_raw_os_error(nix::errno::Errno::EMFILE as i32);
        assert_eq!(Error::io("connect", fds).kind(), Code::ResourceExhausted);
    }
}
