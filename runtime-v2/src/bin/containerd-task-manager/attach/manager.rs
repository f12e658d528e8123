//! `containerd.taskmanager.v1.Manager`: what concerns the set of tasks.

use std::sync::Arc;

use runtime_proto::{
    manager::{
        self, DeleteRequest, DeleteResponse, GetRequest, GetResponse, InfoRequest, InfoResponse,
        ListRequest, ListResponse,
    },
    protobuf::Message,
    ttrpc::Status,
};
use runtime_v2::{Code, Task};

use super::{
    call::{Call, decode, encode, not_found, status, status_of},
    place::{Attached, Place},
};

/// A method of the service, but `Create`, which is told when its caller gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Load,
    Get,
    List,
    Delete,
    Info,
}

impl Method {
    /// The method of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "Load" => Method::Load,
            "Get" => Method::Get,
            "List" => Method::List,
            "Delete" => Method::Delete,
            "Info" => Method::Info,
            _ => return None,
        })
    }

    /// Serves one call.
    ///
    /// # Errors
    /// As containerd's own manager words them.
    pub(super) async fn serve(
        self,
        place: &Arc<Place>,
        call: &Call,
        payload: &[u8],
    ) -> Result<Vec<u8>, Status> {
        match self {
            Method::Load => encode(&place.load(decode(payload)?).await?),
            Method::Get => encode(&get(place.attached()?, call, &decode(payload)?).await?),
            Method::List => encode(&list(place.attached()?, call, &decode(payload)?)?),
            Method::Delete => encode(&delete(place.attached()?, call, &decode(payload)?).await?),
            Method::Info => encode(&info(place.attached()?, decode(payload)?).await?),
        }
    }
}

/// What is known of a task.
pub(super) fn describe(task: &Task) -> manager::Task {
    let (key, location) = (task.key(), task.shim().location());
    let mut described = manager::Task::new();
    (described.namespace, described.id) = (key.namespace.to_string(), key.id.to_string());
    described.pid = task.pid();
    described.bundle = task.shim().bundle().path().display().to_string();
    described.address = format!("{}+{}", location.protocol.as_str(), location.address);
    // Versions that are supported are small and positive.
    described.version = u32::try_from(location.version).unwrap_or(0);
    described
}

async fn get(
    attached: &Attached,
    call: &Call,
    request: &GetRequest,
) -> Result<GetResponse, Status> {
    let key = call.key(&request.id)?;
    let task = attached.manager.get(&key).await.map_err(|_| not_found(&request.id))?;
    let mut response = GetResponse::new();
    response.task = Some(describe(&task)).into();
    Ok(response)
}

fn list(attached: &Attached, call: &Call, request: &ListRequest) -> Result<ListResponse, Status> {
    let namespace = if request.all_namespaces { None } else { Some(call.namespace()?) };
    let tasks = attached.manager.list(namespace.as_ref());
    let mut response = ListResponse::new();
    response.tasks = tasks.iter().map(describe).collect();
    Ok(response)
}

async fn delete(
    attached: &Attached,
    call: &Call,
    request: &DeleteRequest,
) -> Result<DeleteResponse, Status> {
    let key = call.key(&request.id)?;
    let deleted = attached.manager.delete(&key).await;
    let exit = deleted.map_err(|error| status_of("failed to delete task", &error))?;
    let mut response = DeleteResponse::new();
    (response.pid, response.exit_status) = (exit.pid, exit.status);
    response.exited_at = exit.at.into();
    Ok(response)
}

async fn info(attached: &Attached, request: InfoRequest) -> Result<InfoResponse, Status> {
    let options = request.options.into_option();
    let asked = attached.manager.shims().info(&request.runtime, options.as_ref()).await;
    let info = asked.map_err(|error| status(&error))?;
    let mut response = InfoResponse::new();
    response.info =
        info.write_to_bytes().map_err(|error| Code::Internal.status(&error.to_string()))?;
    Ok(response)
}
