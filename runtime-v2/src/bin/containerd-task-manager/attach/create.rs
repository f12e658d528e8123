//! `Create`: what containerd says of a container, put together for the library.

use std::sync::Arc;

use runtime_proto::{
    manager::{CreateRequest, CreateResponse, Mount},
    ttrpc::Status,
    types,
};
use runtime_v2::{Code, CreateOptions, Endpoint, Key, Stdio, ttrpc::Client};

use super::{
    call::{Call, GivenUp, status_of},
    manager::describe,
    place::Place,
    restore::RootfsDiff,
};

/// Serves `Create`. Once the caller gives up, the answer comes when all is undone.
///
/// # Errors
/// `AlreadyExists` if there is a task of that id; otherwise what has failed, and then nothing is
/// left.
pub(super) async fn create(
    place: &Place,
    call: &Call,
    client: Client,
    mut request: CreateRequest,
) -> Result<CreateResponse, Status> {
    let attached = place.attached()?;
    let id = std::mem::take(&mut request.id);
    let key = call.new_key(&id)?;
    if attached.manager.get(&key).await.is_ok() {
        return Err(Code::AlreadyExists.status(&format!("task {id}")));
    }
    let sandbox = sandbox(&key, &request)?;
    let _vouched = sandbox.clone().map(|sandbox| attached.records.vouch(sandbox));
    let rootfs = std::mem::take(&mut request.rootfs).into_iter().map(mount).collect();
    let options = CreateOptions {
        rootfs,
        sandbox: sandbox.map(|sandbox| sandbox.id.to_string()),
        ..options(request)
    };
    let mut why = None;
    let given_up = async { why = Some(call.given_up(client).await) };
    let created = attached.manager.create_until(key, options, given_up).await;
    let task = created.map_err(|error| match (why, error.kind()) {
        (Some(GivenUp::Late), Code::Canceled) => Code::DeadlineExceeded.status(&error.to_string()),
        _ => status_of("failed to create shim task", &error),
    })?;
    if task.shim().is_downgraded() {
        place.metrics.downgraded();
    }
    let mut response = CreateResponse::new();
    response.task = Some(describe(&task)).into();
    Ok(response)
}

/// The sandbox to join, if it is on record. One that is not was made by a containerd that kept no
/// such records: the container then gets a shim by its own `start`.
fn sandbox(key: &Key, request: &CreateRequest) -> Result<Option<Key>, Status> {
    let id = &request.sandbox_id;
    if id.is_empty() {
        return Ok(None);
    }
    if !request.sandbox_known {
        tracing::warn!(namespace = %key.namespace, id = %key.id, sandbox = id, "no such sandbox");
        return Ok(None);
    }
    let sandbox = Key::new(key.namespace.as_str(), id.as_str());
    sandbox.map(Some).map_err(|_| {
        Code::InvalidArgument.status(&format!("invalid sandbox id {id:?} of task {}", key.id))
    })
}

fn options(request: CreateRequest) -> CreateOptions {
    let version = i32::try_from(request.task_api_version).unwrap_or(i32::MAX);
    let whole = request.restore_from_path && !request.checkpoint.is_empty();
    let restoration = whole.then(|| Arc::new(RootfsDiff::beside(&request.checkpoint)) as _);
    let endpoint = Some(request.task_api_address).filter(|address| !address.is_empty());
    CreateOptions {
        spec: request.spec.into_option(),
        stdio: Stdio {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        },
        checkpoint: request.checkpoint,
        restoration,
        runtime: request.runtime,
        runtime_options: request.runtime_options.into_option(),
        task_options: request.task_options.into_option(),
        endpoint: endpoint.map(|address| Endpoint { address, version }),
        ..CreateOptions::default()
    }
}

fn mount(sent: Mount) -> types::Mount {
    let mut mount = types::Mount::new();
    (mount.type_, mount.source) = (sent.type_, sent.source);
    (mount.target, mount.options) = (sent.target, sent.options);
    mount
}
