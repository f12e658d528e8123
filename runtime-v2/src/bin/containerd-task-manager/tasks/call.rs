//! Who calls, and finding what they call upon.

use hyper::HeaderMap;
use runtime_v2::{ExecId, Key, Namespace, ProcessId, Task};
use tonic::{Code, Status, metadata::MetadataMap};

use super::Tasks;
use crate::{
    api::containers::Container,
    containerd::Scope,
    grpc::{LEASE_HEADER, NAMESPACE_HEADER, status},
};

/// On whose behalf a call is made.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(super) namespace: Namespace,
    pub(super) scope: Scope,
}

impl Call {
    /// Reads the headers.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        let metadata = MetadataMap::from_headers(headers.clone());
        let named = metadata.get(NAMESPACE_HEADER).and_then(|name| name.to_str().ok());
        let Some(name) = named.filter(|name| !name.is_empty()) else {
            return Err(Status::failed_precondition("namespace is required: failed precondition"));
        };
        let namespace = Namespace::new(name).map_err(|error| status(&error))?;
        let scope =
            Scope { namespace: name.to_owned(), lease: metadata.get(LEASE_HEADER).cloned() };
        Ok(Self { namespace, scope })
    }

    pub(super) fn key(&self, id: &str) -> Result<Key, Status> {
        Key::new(self.namespace.as_str(), id).map_err(|error| status(&error))
    }
}

/// The process that an exec id names; empty is init.
pub(super) fn process(exec_id: &str) -> Result<ProcessId, Status> {
    if exec_id.is_empty() {
        return Ok(ProcessId::Init);
    }
    ExecId::new(exec_id).map(ProcessId::Exec).map_err(|error| status(&error))
}

impl Tasks {
    /// The record of a container.
    pub(super) async fn container(&self, call: &Call, id: &str) -> Result<Container, Status> {
        let found = self.containerd.container(&call.scope, id).await?;
        found.ok_or_else(|| {
            let text =
                format!("container {id:?} in namespace {:?}: not found", call.scope.namespace);
            Status::not_found(text)
        })
    }

    /// A task. If there is none, the answer tells whether there is a container.
    pub(super) async fn task(&self, call: &Call, id: &str) -> Result<Task, Status> {
        // An id that nothing can have is not found, as containerd says.
        if let Ok(key) = call.key(id)
            && let Ok(task) = self.manager.get(&key).await
        {
            return Ok(task);
        }
        self.container(call, id).await?;
        Err(Status::not_found(format!("task {id} not found")))
    }

    /// A task and a process in it. That an exec exists is asked of its shim first, as containerd
    /// does: not every call of every shim tells it.
    pub(super) async fn process(
        &self,
        call: &Call,
        id: &str,
        exec_id: &str,
    ) -> Result<(Task, ProcessId), Status> {
        let task = self.task(call, id).await?;
        let process = process(exec_id)?;
        if process != ProcessId::Init {
            task.state(&process).await.map_err(|error| status(&error))?;
        }
        Ok((task, process))
    }
}

/// Whether an answer means that something is not, or no longer, there.
pub(super) fn is_gone(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::Unavailable | Code::DeadlineExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_names_a_valid_namespace() {
        let call = |name: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(name) = name {
                headers.insert(NAMESPACE_HEADER, name.parse().unwrap());
            }
            Call::of(&headers).map(|call| call.namespace.to_string())
        };
        assert_eq!(call(Some("k8s.io")).unwrap(), "k8s.io");
        for none in [None, Some("")] {
            assert_eq!(call(none).unwrap_err().code(), Code::FailedPrecondition);
        }
        assert_eq!(call(Some("../x")).unwrap_err().code(), Code::InvalidArgument);
    }
}
