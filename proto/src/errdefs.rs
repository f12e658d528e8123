//! The error classes of containerd (its `errdefs`) and the codes they travel as.
//!
//! This is the only code table of the workspace: ttrpc and gRPC share the numbers of
//! `google.rpc.Code`, and containerd's Go side words each class the same way at the end of a message.

use std::fmt;

use ttrpc::proto::Status;

/// An RPC status code other than OK, as in `google.rpc.Code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
pub enum Code {
    /// The caller went away.
    Canceled = 1,
    /// An error without a class.
    Unknown = 2,
    /// The request itself is wrong.
    InvalidArgument = 3,
    /// The caller's deadline passed.
    DeadlineExceeded = 4,
    /// The named thing does not exist.
    NotFound = 5,
    /// The named thing exists already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A size or count limit was met.
    ResourceExhausted = 8,
    /// The thing is not in a state that allows this.
    FailedPrecondition = 9,
    /// A concurrent operation got in the way.
    Aborted = 10,
    /// Past the end.
    OutOfRange = 11,
    /// The peer does not know this service or method.
    Unimplemented = 12,
    /// An invariant broke.
    Internal = 13,
    /// The peer cannot be reached now.
    Unavailable = 14,
    /// Data was lost.
    DataLoss = 15,
    /// The caller did not say who it is.
    Unauthenticated = 16,
}

/// Every code, in order of its number.
pub const ALL: [Code; 16] = [
    Code::Canceled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

impl Code {
    /// The number on the wire.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The class for a number from the wire; `None` for OK, and `Unknown` for numbers nobody defined.
    pub fn from_number(number: i32) -> Option<Self> {
        if number == 0 {
            return None;
        }
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        Some(index.and_then(|index| ALL.get(index)).copied().unwrap_or(Code::Unknown))
    }

    /// The words that containerd's errdefs puts at the end of a message of this class.
    pub const fn class(self) -> &'static str {
        match self {
            Code::Canceled => "context canceled",
            Code::Unknown => "unknown",
            Code::InvalidArgument => "invalid argument",
            Code::DeadlineExceeded => "context deadline exceeded",
            Code::NotFound => "not found",
            Code::AlreadyExists => "already exists",
            Code::PermissionDenied => "permission denied",
            Code::ResourceExhausted => "resource exhausted",
            Code::FailedPrecondition => "failed precondition",
            Code::Aborted => "aborted",
            Code::OutOfRange => "out of range",
            Code::Unimplemented => "not implemented",
            Code::Internal => "internal",
            Code::Unavailable => "unavailable",
            Code::DataLoss => "data loss",
            Code::Unauthenticated => "unauthenticated",
        }
    }

    /// `message` worded as containerd's Go code would: with the class at its end, once.
    ///
    /// Errors without a class stay as they are.
    pub fn describe(self, message: &str) -> String {
        let class = self.class();
        if self == Code::Unknown || message.ends_with(class) {
            message.to_owned()
        } else if message.is_empty() {
            class.to_owned()
        } else {
            format!("{message}: {class}")
        }
    }

    /// A ttrpc status of this class with `message` worded by [`Code::describe`].
    pub fn status(self, message: &str) -> Status {
        let mut status = Status::new();
        status.code = protobuf::EnumOrUnknown::from_i32(self.number());
        status.message = self.describe(message);
        status
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_number() {
        for code in ALL {
            assert_eq!(Code::from_number(code.number()), Some(code));
        }
        assert_eq!(Code::from_number(0), None);
        for undefined in [-1, 17, i32::MAX, i32::MIN] {
            assert_eq!(Code::from_number(undefined), Some(Code::Unknown));
        }
    }

    #[test]
    fn messages_end_with_their_class_once() {
        assert_eq!(Code::NotFound.describe("task x"), "task x: not found");
        assert_eq!(Code::NotFound.describe("task x: not found"), "task x: not found");
        assert_eq!(Code::Unknown.describe("runc failed"), "runc failed");
        assert_eq!(Code::Unimplemented.describe(""), "not implemented");
    }
}
