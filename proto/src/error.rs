//! The one error type of manager and shim: a kind that is an RPC code, what was being done and for
//! which id, and the cause.

use std::{error, fmt, io};

use crate::errdefs::Code;

/// Result of anything that can fail so.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn error::Error + Send + Sync>;

/// The errnos of a process and of a host that have no descriptors left, the same on every Linux;
/// the standard library has no word for them.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

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
            io::ErrorKind::ConnectionRefused => Code::Unavailable,
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::OutOfMemory => Code::ResourceExhausted,
            _ if matches!(source.raw_os_error(), Some(ENFILE | EMFILE)) => Code::ResourceExhausted,
            _ => Code::Unknown,
        };
        Self::caused(kind, context, source)
    }

    /// The class of this error.
    pub fn kind(&self) -> Code {
        self.kind
    }

    /// The immediate cause, if it is of this type.
    pub fn cause<T: error::Error + 'static>(&self) -> Option<&T> {
        self.source.as_ref()?.downcast_ref()
    }

    /// The same error told as another class, for callers that know better what it means.
    #[must_use]
    pub fn with_kind(mut self, kind: Code) -> Self {
        self.kind = kind;
        self
    }

    /// The same error for a client who would take "not found" to mean its container or process,
    /// when it is a file that was not found.
    #[must_use]
    pub fn of_a_part(self) -> Self {
        if self.kind == Code::NotFound { self.with_kind(Code::Unknown) } else { self }
    }

    /// The same error with what was being done around it put in front.
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.context = format!("{outer}: {}", self.context);
        self
    }
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
        let cause = io::Error::new(io::ErrorKind::NotFound, "no c1");
        let error = Error::io("delete task ns/c1", cause).within("retry");
        assert_eq!(error.to_string(), "retry: delete task ns/c1: no c1");
        assert_eq!(error.kind(), Code::NotFound);
        assert!(error.cause::<io::Error>().is_some() && error.cause::<fmt::Error>().is_none());
        assert_eq!(error.of_a_part().kind(), Code::Unknown);
    }

    #[test]
    fn what_has_run_out_is_told_apart() {
        // ENOSPC, EDQUOT, ENOMEM, ENFILE, EMFILE.
        for errno in [28, 122, 12, 23, 24] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(Error::io("write", error).kind(), Code::ResourceExhausted, "{errno}");
        }
    }
}
