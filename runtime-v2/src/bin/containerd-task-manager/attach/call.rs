//! Who calls, what is called, and how it is answered.

use std::{future::pending, time::Duration};

use runtime_proto::{
    NAMESPACE_KEY,
    protobuf::Message,
    ttrpc::{Request, Status},
};
use runtime_v2::{
    Code, Error, Key, Namespace,
    ttrpc::{CallError, Client},
};

/// On whose behalf a call is made, and how long its answer is waited for.
#[derive(Debug)]
pub(super) struct Call {
    namespace: Option<String>,
    pub(super) limit: Option<Duration>,
}

/// Why a caller does not want any more what it has called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// Its deadline has passed.
    Late,
    /// It has closed the connection, or its half of it.
    Left,
}

impl Call {
    /// Reads the envelope of a request.
    pub(super) fn of(request: &Request) -> Self {
        let pair = request.metadata.iter().find(|pair| pair.key == NAMESPACE_KEY);
        let limit = u64::try_from(request.timeout_nano).ok().filter(|nanos| *nanos > 0);
        Self {
            namespace: pair.map(|pair| pair.value.clone()),
            limit: limit.map(Duration::from_nanos),
        }
    }

    /// Returns when the caller gives up.
    pub(super) async fn given_up(&self, mut client: Client) -> GivenUp {
        let late = async {
            match self.limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = late => GivenUp::Late,
            () = client.left() => GivenUp::Left,
        }
    }

    /// The namespace, which most calls need.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none, or none that can be one.
    pub(super) fn namespace(&self) -> Result<Namespace, Status> {
        let Some(name) = self.namespace.as_deref().filter(|name| !name.is_empty()) else {
            return Err(Code::InvalidArgument.status("namespace is required"));
        };
        Namespace::new(name).map_err(|error| status(&error))
    }

    /// The name of a task that is to be.
    ///
    /// # Errors
    /// `InvalidArgument` if that cannot be one.
    pub(super) fn new_key(&self, id: &str) -> Result<Key, Status> {
        Key::new(self.namespace()?.as_str(), id).map_err(|error| status(&error))
    }

    /// The name of a task that there is.
    ///
    /// # Errors
    /// `NotFound` if nothing can have that name.
    pub(super) fn key(&self, id: &str) -> Result<Key, Status> {
        Key::new(self.namespace()?.as_str(), id).map_err(|_| not_found(id))
    }
}

/// Reads a request.
///
/// # Errors
/// `InvalidArgument` if these bytes are none.
pub(super) fn decode<M: Message>(payload: &[u8]) -> Result<M, Status> {
    M::parse_from_bytes(payload).map_err(|error| {
        Code::InvalidArgument.status(&format!("the request cannot be read: {error}"))
    })
}

/// Writes an answer.
///
/// # Errors
/// `Internal` if it is larger than a message can be.
pub(super) fn encode<M: Message>(answer: &M) -> Result<Vec<u8>, Status> {
    answer.write_to_bytes().map_err(|error| Code::Internal.status(&error.to_string()))
}

/// There is no such task.
pub(super) fn not_found(id: &str) -> Status {
    Code::NotFound.status(&format!("task {id}"))
}

/// An error as containerd's manager gives it to its callers: what a shim has said goes on word for
/// word.
pub(super) fn status(error: &Error) -> Status {
    said_by_shim(error).unwrap_or_else(|| error.kind().status(&error.to_string()))
}

/// The same, of a step that containerd names.
pub(super) fn status_of(step: &str, error: &Error) -> Status {
    match said_by_shim(error) {
        Some(mut said) => {
            said.message = format!("{step}: {}", said.message);
            said
        }
        None => error.kind().status(&error.to_string()),
    }
}

fn said_by_shim(error: &Error) -> Option<Status> {
    let Some(CallError::Refused { code, message }) = error.cause() else { return None };
    let mut said = code.status("");
    said.message.clone_from(message);
    // The library may know better what it means.
    said.code = error.kind().status("").code;
    Some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code, text: &str) -> Error {
        let refusal = CallError::Refused { code, message: text.into() };
        runtime_v2::error::call("Create of ns/id", refusal).within("failed to create shim task")
    }

    #[test]
    fn what_a_shim_has_said_is_handed_on_word_for_word() {
        let error = refused(Code::Unknown, "OCI runtime create failed: no such file");
        assert_eq!(status(&error).message, "OCI runtime create failed: no such file");
        let whole = status_of("failed to create shim task", &error);
        assert_eq!(
            whole.message,
            "failed to create shim task: OCI runtime create failed: no such file"
        );
        assert_eq!(whole.code.value(), Code::Unknown.number());
        let error = Error::new(Code::NotFound, "task ns/id");
        assert_eq!(status(&error).message, "task ns/id: not found");
    }

    #[test]
    fn a_call_names_a_namespace_where_it_needs_one() {
        let call = |name: Option<&str>| Call { namespace: name.map(Into::into), limit: None };
        assert_eq!(call(Some("k8s.io")).namespace().unwrap().as_str(), "k8s.io");
        for bad in [None, Some(""), Some("../x")] {
            let refused = call(bad).namespace().unwrap_err();
            assert_eq!(refused.code.value(), Code::InvalidArgument.number(), "{bad:?}");
        }
        let refused = call(Some("ns")).key("../x").unwrap_err();
        assert_eq!(refused.code.value(), Code::NotFound.number());
    }
}
