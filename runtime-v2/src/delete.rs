//! Deleting a task, from whichever point an earlier attempt came to.
//!
//! ```text
//!   Task.Delete ok ------> noted --> Shutdown, close --> bundle removed --> forgotten: the exit
//!     | not found --> binary delete --> noted --> ... the same ...              : NotFound
//!     | closed ------> the shim is dead: its clean-up                           : the exit
//!     | other -------> nothing has changed                                      : that error
//! ```
//! `Shutdown` goes to the shim after every deletion, whatever pod the container was in: a shim of
//! many containers ignores it until the last, and one of a single container needs it. Only one in
//! which a container is just being made is left to the end of that. It is held back until exit and
//! deletion have been heard, where they are to be heard; what was not is told in the shim's place
//! behind it.

use std::{sync::Arc, time::Duration};

use runtime_proto::{
    errdefs::Code,
    task::{DeleteRequest, DeleteResponse},
};

use crate::{
    activation,
    bundle::Bundle,
    dead_shim::{self, Published},
    error::{self, Error, Result},
    hearing::{Hearing, LAST_WORDS, PATIENCE, Told},
    id::Key,
    observed::End,
    task::{Entry, Exit, exit},
    task_manager::Inner,
};

/// A shim first drains the container's output (10 s), then runs the OCI runtime, then unmounts,
/// which under heavy disk load has been seen to take minutes.
const DELETE_TIMEOUT: Duration = Duration::from_secs(300);

/// Deletes a task. Callers of the same task take turns.
pub(crate) async fn delete(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Result<Exit> {
    let key = entry.shim.key();
    let _turn = entry.turn.lock().await;
    if !inner.is_current(entry) {
        return Err(not_found(key));
    }
    if let Some(exit) = entry.deleted() {
        return finish(inner, entry, exit, Told::NONE).await;
    }
    if inner.hearing() == Hearing::Everything && entry.told() == Told::NONE {
        // Should this manager be killed behind the shim's deletion, nothing else shows the next one that there was a task.
        entry.shim.bundle().note_deleting().await;
    }
    let mut request = DeleteRequest::new();
    request.id = key.id.to_string();
    let asked: Result<DeleteResponse> =
        entry.shim.call("Delete", &request, Some(DELETE_TIMEOUT)).await;
    match asked {
        Ok(answer) => {
            let exit = exit(answer);
            entry.note_deleted(exit.clone());
            let due = inner.hearing().of_deletion(exit.at.as_ref());
            finish(inner, entry, exit, due).await
        }
        Err(error) if error::is_closed(&error) => Ok(dead_shim::clean_up(inner, entry).await),
        Err(error) if error.kind() == Code::NotFound => {
            // The shim says there is nothing; the OCI runtime may still know something.
            let exit = dead_shim::binary_delete(inner, entry).await;
            entry.note_deleted(exit.clone());
            finish(inner, entry, exit, inner.hearing().of_past()).await?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

fn not_found(key: &Key) -> Error {
    Error::new(Code::NotFound, format!("task {key} not found"))
}

/// What follows the end of the container; `due` are the events of it that are to be heard. If the
/// bundle cannot go, the task stays noted as deleted, and the next call comes here again.
async fn finish(inner: &Arc<Inner>, entry: &Arc<Entry>, exit: Exit, due: Told) -> Result<Exit> {
    let shim = &entry.shim;
    if !shim.is_ending() {
        tokio::select! {
            _ = entry.hear(due, PATIENCE) => {}
            () = shim.client().when_closed() => {}
        }
        // Should this manager be killed from here on, the next one finds a shim that has ended,
        // and must not take the task for one that was lost.
        entry.note(&End { exit: exit.clone(), told: due.complement() }).await;
        shim.shut_down(inner.shims.config().timeouts.shutdown).await;
        entry.hear(due, LAST_WORDS).await;
    }
    if dead_shim::tell_rest(inner, entry, &exit).await == Published::Later {
        entry.end(exit.clone()).await;
        inner.forget(entry);
        return Ok(exit);
    }
    shim.bundle()
        .blocking(|bundle| {
            bundle.forget_shim();
            Bundle::remove(bundle)
        })
        .await
        .map_err(|error| error.within(format!("delete task {}", shim.key())))?;
    activation::deactivate(&*inner.environment.mounts, shim.key()).await;
    entry.end(exit.clone()).await;
    inner.forget(entry);
    let (namespace, id) = (&shim.key().namespace, &shim.key().id);
    tracing::info!(%namespace, %id, pid = exit.pid, status = exit.status, "task deleted");
    Ok(exit)
}
