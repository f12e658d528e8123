//! Cleaning up behind what was lost while no manager looked.

use std::{collections::HashSet, sync::Arc};

use runtime_proto::task::{DeleteRequest, DeleteResponse};

use super::examine::Lost;
use crate::{
    bundle::Bundle,
    config::Timeouts,
    dead_shim::{self, Published},
    error::Result,
    hearing::{PATIENCE, Told},
    id::Key,
    shim_manager::Reservation,
    task::Entry,
    task_manager::Inner,
};

/// Cleans up behind one bundle; its id is free when that is done.
pub(super) async fn clean(inner: &Arc<Inner>, mut reservation: Reservation, lost: Lost) {
    match lost {
        Lost::Leaked(entry) => reap(inner, &entry, &mut reservation).await,
        Lost::Dead(dead) => {
            // Whoever takes the events may come up only when the load is answered.
            let buried = dead.bury(inner, || reservation.decide()).await;
            if buried == Published::Out {
                dead_shim::remove_bundle(inner, &dead.bundle).await;
            }
        }
    }
    drop(reservation);
}

/// Ends a shim that has no task. There is no event as a rule: nothing ever ran, or its end was told.
///
/// It may be in the middle of a create that an earlier manager asked for: then it knows of no task
/// yet, and is ended with its call of the OCI runtime cut off. What that has made, `delete` removes.
///
/// Or the task was deleted for an earlier manager that did not live to hear of it. Then the shim may
/// still be about to tell so. Whatever half of the end is told calls for the other half, and that the deletion was asked for calls
/// for both.
async fn reap(inner: &Inner, entry: &Arc<Entry>, reservation: &mut Reservation) {
    let shim = &entry.shim;
    tracing::info!(key = %shim.key(), "ending a shim without a task");
    let _turn = entry.turn.lock().await;
    let read = shim.bundle().blocking(|bundle| Ok((bundle.init_pid(), bundle.is_deleting())));
    let (pid, deleting) = read.await.unwrap_or_default();
    let end = entry.published().unwrap_or_else(|| dead_shim::unknown_exit(pid));
    let due = due(inner, entry, pid);
    entry.hear(due, PATIENCE).await;
    let mut request = DeleteRequest::new();
    request.id = shim.key().id.to_string();
    // Not found, as a rule; asked all the same, for one that is half made.
    let Timeouts { cleanup, shutdown, .. } = inner.shims.config().timeouts;
    let deleted: Result<DeleteResponse> = shim.call("Delete", &request, Some(cleanup)).await;
    shim.shut_down(shutdown).await;
    if deleted.is_err() {
        dead_shim::end_remains(inner, shim).await;
    }
    let told = (entry.told() != Told::NONE || deleting) && due == Told::BOTH;
    if told {
        // As above.
        reservation.decide();
    }
    if !told || dead_shim::tell_rest(inner, entry, &end).await == Published::Out {
        dead_shim::remove_bundle(inner, shim.bundle()).await;
    }
    entry.end(end).await;
    inner.forget(entry);
}

/// What such a shim may have to tell still: of a task that ran, as the bundle shows.
fn due(inner: &Inner, entry: &Entry, pid: Option<u32>) -> Told {
    let ran = entry.told() != Told::NONE || pid.is_some();
    if ran { inner.hearing().of_past() } else { Told::NONE }
}

/// Removes work directories whose bundle has vanished, as all do at a reboot.
pub(super) async fn remove_work(inner: &Arc<Inner>, keys: Vec<Key>) {
    for key in keys {
        // Somebody may be creating a task of this id right now.
        let Ok(reservation) = inner.shims.reserve(&key) else { continue };
        let bundle = Bundle::at(inner.shims.config(), key);
        let removed = bundle
            .blocking(|bundle| if bundle.path().exists() { Ok(()) } else { bundle.remove_work() });
        if let Err(error) = removed.await {
            tracing::warn!(key = %bundle.key(), %error, "a work directory stays");
        }
        drop(reservation);
    }
}

/// Goes on with removals that were cut off.
pub(super) async fn remove_leftovers(inner: &Arc<Inner>, keys: HashSet<Key>) {
    for key in keys {
        // Taken means alive, or being removed; its removal takes these along.
        let Ok(reservation) = inner.shims.reserve(&key) else { continue };
        let bundle = Bundle::at(inner.shims.config(), key);
        if let Err(error) = bundle.blocking(Bundle::remove_leftovers).await {
            tracing::warn!(key = %bundle.key(), %error, "a half-removed bundle stays");
        }
        drop(reservation);
    }
}
