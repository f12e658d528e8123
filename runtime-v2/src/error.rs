//! The error type that manager and shim share, and what errors of calls to shims tell.

pub use runtime_proto::error::{Error, Result};

use crate::ttrpc::CallError;

/// A call to a shim that did not succeed; its kind is the code the shim gave.
pub fn call(context: impl Into<String>, source: CallError) -> Error {
    Error::caused(source.code(), context, source)
}

/// Whether the connection to the shim was gone, as opposed to the shim having said no.
pub fn is_closed(error: &Error) -> bool {
    matches!(error.cause(), Some(CallError::Closed))
}

/// Whether a call was made, as opposed to something before it.
pub(crate) fn is_call(error: &Error) -> bool {
    error.cause::<CallError>().is_some()
}

#[cfg(test)]
mod tests {
    use runtime_proto::errdefs::Code;

    use super::*;

    #[test]
    fn a_refusal_is_told_from_a_closed_connection() {
        let refused = CallError::Refused { code: Code::NotFound, message: "no c1".into() };
        let error = call("delete task ns/c1", refused).within("retry");
        assert_eq!(error.kind(), Code::NotFound);
        assert!(is_call(&error) && !is_closed(&error));
        assert!(is_closed(&call("x", CallError::Closed)));
        assert!(!is_call(&Error::new(Code::NotFound, "x")));
    }
}
