//! The shim's one error type: a kind that is an RPC code, what was being done, and the cause.

use std::{error, fmt, io};

use runtime_proto::errdefs::Code;

/// Result of anything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed (`context`), how a client should understand it (`kind`), and why (`source`).
#[derive(Debug)]
pub struct Error {
    kind: Code,
    context: String,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// An error without a deeper cause.
    pub fn new(kind: Code, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// An error that another one caused.
    pub fn caused(
        kind: Code,
        context: impl Into<String>,
        source: impl Into<Box<dyn error::Error + Send + Sync>>,
    ) -> Self {
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
            _ => Code::Unknown,
        };
        Self::caused(kind, context, source)
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

/// Cuts a text that quotes what somebody else wrote to at most `most` bytes, and says so.
pub fn shorten(text: &mut String, most: usize) {
    const CUT: &str = " [...]";
    if text.len() > most {
        let mut end = most.saturating_sub(CUT.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(CUT);
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
