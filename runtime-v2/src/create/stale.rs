//! A directory is in the way of a new bundle.
//!
//! The id is not taken in this manager, so the directory is what an interrupted deletion, a crash
//! or somebody else has left. It is removed only if it is proved that no container lives in it:
//! its shim is dead, or says itself that it knows no such task.

use std::{path::Path, time::Duration};

use runtime_proto::{
    bootstrap::Bootstrap,
    errdefs::Code,
    task::{ConnectRequest, ConnectResponse},
};

use crate::{
    bundle::{Bundle, Located, Origin},
    client::{First, TaskClient},
    dead_bundle::Dead,
    dead_shim::{self, Published},
    error::{Error, Result},
    id::Key,
    procfs,
    shim::{Parts, Shim},
    shim_manager::farewell,
    task::{ProcessId, state},
    task_manager::Inner,
};

/// A live shim answers from memory; one that does not answer cannot be proved dead.
const PROOF_TIMEOUT: Duration = Duration::from_secs(2);

/// Removes a stale directory. If a task lived in it whose end nobody has told, as of one that could not be judged when this
/// manager began, that is told first.
///
/// # Errors
/// `AlreadyExists`, with nothing touched, if a shim lives there, or may; `Unavailable` if the end cannot be told now.
pub(super) async fn heal(inner: &Inner, key: &Key, binary: &Path) -> Result<()> {
    let bundle = Bundle::at(inner.shims.config(), key.clone());
    let read_at = procfs::now();
    let read = bundle
        .blocking(|bundle| Ok((bundle.located(), bundle.origin(), bundle.binary_path())))
        .await?;
    let (located, origin, noted) = read;
    let (namespace, id) = (&key.namespace, &key.id);
    tracing::warn!(%namespace, %id, ?located, "a directory is in the way of a new task");
    let had_task = located != Located::Nowhere;
    let location = located.location();
    let answers = match &location {
        None => false,
        Some(location) => prove_stale(inner, &bundle, location).await?,
    };
    inner.shims.keep_no_more(key);
    let binary = noted.filter(|path| path.exists()).unwrap_or_else(|| binary.to_path_buf());
    if let (true, Some(location)) = (answers, &location) {
        dismiss(inner, &bundle, &binary, location).await;
    } else {
        let (binary, bundle) = (Some(binary), bundle.clone());
        let dead = Dead { bundle, binary, location, read_at, had_task, origin };
        if dead.bury(inner, || ()).await == Published::Later {
            let text = format!("task {key}: the end of the last one of this id cannot be told now");
            return Err(Error::new(Code::Unavailable, text));
        }
    }
    bundle
        .blocking(Bundle::remove)
        .await
        .map_err(|error| error.within(format!("remove the stale bundle of {key}")))
}

/// Ends a shim that says it has no task of this bundle, and what it has left of one.
async fn dismiss(inner: &Inner, bundle: &Bundle, binary: &Path, location: &Bootstrap) {
    // It may serve others, whom this manager need not know; then it ignores the request. One in which a container is being
    // made need not know of that.
    if !inner.shims.users().any(&location.address) {
        farewell(bundle.key(), location).await;
    }
    dead_shim::run_delete(inner, &inner.shims.binary(binary), bundle, None).await;
    inner.shims.remove_socket(location).await;
}

/// Succeeds if no container lives in the bundle; tells whether there is a shim that says so.
async fn prove_stale(inner: &Inner, bundle: &Bundle, location: &Bootstrap) -> Result<bool> {
    let key = bundle.key();
    match TaskClient::connect(location, &key.namespace, PROOF_TIMEOUT).await {
        Ok(client) => {
            let shim = Shim::new(Parts {
                bundle: bundle.clone(),
                location: location.clone(),
                client,
                binary: None,
                origin: Origin::Joined,
                log: None,
                users: inner.shims.users(),
            });
            let forgotten = prove_forgotten(&shim).await;
            shim.close().await;
            forgotten.map(|()| true)
        }
        Err(error) if matches!(error.kind(), Code::NotFound | Code::Unavailable) => Ok(false),
        Err(error) => Err(in_use(key, &error)),
    }
}

/// Succeeds if the shim says that there is no such task.
async fn prove_forgotten(shim: &Shim) -> Result<()> {
    let mut request = ConnectRequest::new();
    request.id = shim.key().id.to_string();
    // Finds out the version; the answer itself proves nothing, some shims give it for any id.
    let _: Result<First<ConnectResponse>> =
        shim.first_call("Connect", &request, Some(PROOF_TIMEOUT)).await;
    match state(shim, &ProcessId::Init, PROOF_TIMEOUT).await {
        Err(error) if error.kind() == Code::NotFound => Ok(()),
        Err(error) => Err(in_use(shim.key(), &error)),
        Ok(state) => {
            let found = format!("its shim has a task of it with pid {}", state.pid);
            Err(Error::new(
                Code::AlreadyExists,
                format!("task {} already exists: {found}", shim.key()),
            ))
        }
    }
}

fn in_use(key: &Key, error: &Error) -> Error {
    let text = format!("task {key} already exists: its shim cannot be proved dead: {error}");
    Error::new(Code::AlreadyExists, text)
}
