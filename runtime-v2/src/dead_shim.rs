//! A shim is lost: ending its container, and saying so in its place, once.
//!
//! Every task watches the connection of its own shim entry. When a process that serves many
//! containers dies, all their connections break, and each container is cleaned up on its own.

use std::sync::{Arc, Weak};

use runtime_proto::{
    errdefs::Code,
    events::{TaskDelete, TaskExit},
    topics::Event,
    types::Timestamp,
};

use crate::{
    activation,
    bundle::Bundle,
    error::Result,
    events,
    hearing::Told,
    id::Key,
    observed::End,
    shim::Shim,
    shim_binary::ShimBinary,
    task::{Entry, Exit, exit},
    task_manager::Inner,
};

/// Exit status of a container whose end nobody saw (containerd's `UnknownExitStatus`).
const UNKNOWN: u32 = 255;

/// What a Go shim's `delete` says when there is no pid file: -1 as it comes out of 32 bits.
const NO_PID: u32 = u32::MAX;

/// Watches the connection of a task's shim until it breaks or the task is gone. The watcher
/// keeps neither manager nor task alive.
pub(crate) fn watch(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let closed = entry.shim.client().when_closed();
    let (inner, entry): (Weak<Inner>, Weak<Entry>) = (Arc::downgrade(inner), Arc::downgrade(entry));
    tokio::spawn(async move {
        closed.await;
        if let (Some(inner), Some(entry)) = (inner.upgrade(), entry.upgrade()) {
            lost(&inner, &entry).await;
        }
    });
}

async fn lost(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let work = inner.work();
    let _work = work.read().await;
    let _turn = entry.turn.lock().await;
    // A deletion that is under way, or done, has closed the connection itself.
    if inner.is_current(entry) && entry.deleted().is_none() {
        let (namespace, id) = (&entry.shim.key().namespace, &entry.shim.key().id);
        tracing::warn!(%namespace, %id, pid = entry.pid(), "shim disconnected, cleaning up");
        clean_up(inner, entry).await;
    }
}

/// Ends what is left of a task whose shim is dead, publishes its exit and its deletion, and
/// forgets it. The caller holds the task's turn.
pub(crate) async fn clean_up(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Exit {
    let shim = &entry.shim;
    shim.close().await;
    // It may have closed the connection and still be there.
    shim.force_end().await;
    let found = binary_delete(inner, entry).await;
    // Not before: the `delete` of old shims wants to remove it itself, and fails without it.
    shim.remove_socket().await;
    let (exit, published) = {
        let _telling = entry.telling().await;
        let exit = entry.published().unwrap_or(found);
        (exit.clone(), publish(inner, shim.bundle(), &exit, entry.told()).await)
    };
    if published == Published::Out {
        remove_bundle(inner, shim.bundle()).await;
    }
    entry.end(exit.clone()).await;
    inner.forget(entry);
    exit
}

/// Runs the shim's binary for `delete`, and makes an exit of what it says.
pub(crate) async fn binary_delete(inner: &Inner, entry: &Entry) -> Exit {
    let shim = &entry.shim;
    let known = (entry.pid() != 0).then_some(entry.pid());
    match shim.binary().and_then(|path| inner.shims.present(path)) {
        Some(path) => run_delete(inner, &inner.shims.binary(&path), shim.bundle(), known).await,
        None => unknown_exit(known),
    }
}

/// Runs `delete` in a bundle. The pid is the one that is known, or the one that `delete` found.
pub(crate) async fn run_delete(
    inner: &Inner,
    binary: &ShimBinary<'_>,
    bundle: &Bundle,
    known: Option<u32>,
) -> Exit {
    let key = bundle.key();
    let known = known.or_else(|| bundle.init_pid());
    let _turn = inner.shims.cleaner().await;
    let forgotten = bundle.blocking(|bundle| {
        bundle.forget_dead_address();
        Ok(())
    });
    // It is only cut off when everything is.
    let _ = forgotten.await;
    let mut deleted = binary.delete(key, bundle.path()).await;
    if deleted.as_ref().is_err_and(|error| error.kind() == Code::DeadlineExceeded) {
        // What it has done by then need not be done again, and what it was about to do must be: with
        // the bundle goes all that is known of the container.
        tracing::warn!(namespace = %key.namespace, id = %key.id, "clean-up by the shim binary takes long");
        deleted = binary.delete(key, bundle.path()).await;
    }
    match deleted {
        Ok(answer) => {
            let mut exit = exit(answer);
            if let Some(pid) = known {
                exit.pid = pid;
            } else if exit.pid == NO_PID {
                exit.pid = 0;
            }
            if exit.at.is_none() {
                exit.at = Some(Timestamp::now());
            }
            exit
        }
        Err(error) => {
            tracing::warn!(namespace = %key.namespace, id = %key.id, %error, "clean-up by the shim binary failed");
            unknown_exit(known)
        }
    }
}

/// Ends what a shim that was asked to go did not say it has ended.
pub(crate) async fn end_remains(inner: &Inner, shim: &Shim) {
    // Ended by request as it may be, a call of the OCI runtime can live on in its name.
    shim.force_end().await;
    shim.end_calls().await;
    if let Some(path) = shim.binary().and_then(|path| inner.shims.present(path)) {
        run_delete(inner, &inner.shims.binary(&path), shim.bundle(), None).await;
    }
}

pub(crate) fn unknown_exit(pid: Option<u32>) -> Exit {
    Exit { pid: pid.unwrap_or(0), status: UNKNOWN, at: Some(Timestamp::now()) }
}

/// Removes the bundle of a lost task, and its mounts. If that fails, the next start meets a bundle that no shim
/// belongs to any more, and tries again.
pub(crate) async fn remove_bundle(inner: &Inner, bundle: &Bundle) {
    let removed = bundle.blocking(|bundle| {
        bundle.forget_shim();
        bundle.remove()
    });
    if let Err(error) = removed.await {
        tracing::error!(namespace = %bundle.key().namespace, id = %bundle.key().id, %error, "a bundle stays");
    }
    activation::deactivate(&*inner.environment.mounts, bundle.key()).await;
}

/// What became of the events of a task's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a bundle whose events are still to be told must stay"]
pub(crate) enum Published {
    /// They are out, or lost for good.
    Out,
    /// They cannot be told by this manager, which is ending; the next one finds the bundle.
    Later,
}

/// Publishes what has not been told of a task's end, and notes that it is out.
///
/// The bundle is still there: a manager that is killed before this leaves it to the next one,
/// which publishes; one that is killed after this has left the note, and nothing is told twice.
pub(crate) async fn publish(inner: &Inner, bundle: &Bundle, exit: &Exit, told: Told) -> Published {
    let key = bundle.key();
    if !told.exit {
        let mut event = TaskExit::new();
        (event.container_id, event.id) = (key.id.to_string(), key.id.to_string());
        (event.pid, event.exit_status) = (exit.pid, exit.status);
        event.exited_at = exit.at.clone().into();
        if send(inner, key, &event).await == Published::Later {
            return Published::Later;
        }
    }
    if !told.deletion {
        let mut event = TaskDelete::new();
        event.container_id = key.id.to_string();
        (event.pid, event.exit_status) = (exit.pid, exit.status);
        event.exited_at = exit.at.clone().into();
        if send(inner, key, &event).await == Published::Later {
            return Published::Later;
        }
    }
    if told != Told::BOTH {
        bundle.note_end(exit.note(Told::BOTH)).await;
    }
    Published::Out
}

/// Tells in the place of a shim what it has not told of a task's end, and will not any more.
pub(crate) async fn tell_rest(inner: &Inner, entry: &Entry, exit: &Exit) -> Published {
    let _telling = entry.telling().await;
    let (key, told) = (entry.shim.key(), entry.told());
    if told == Told::BOTH {
        return Published::Out;
    }
    tracing::warn!(namespace = %key.namespace, id = %key.id, ?told, "its shim has not told its end");
    let exit = entry.published().unwrap_or_else(|| exit.clone());
    let published = publish(inner, entry.shim.bundle(), &exit, told).await;
    if published == Published::Out {
        entry.note(&End { exit, told: Told::BOTH }).await;
    }
    published
}

async fn send<E: Event>(inner: &Inner, key: &Key, event: &E) -> Published {
    let (namespace, id) = (&key.namespace, &key.id);
    match hand_on(inner, key, event).await {
        Ok(()) => Published::Out,
        Err(error) if error.kind() == Code::Unavailable => {
            tracing::warn!(%namespace, %id, topic = E::TOPIC, %error, "an event is left to the next manager");
            Published::Later
        }
        Err(error) => {
            tracing::error!(%namespace, %id, topic = E::TOPIC, %error, "an event is lost");
            Published::Out
        }
    }
}

async fn hand_on<E: Event>(inner: &Inner, key: &Key, event: &E) -> Result<()> {
    let envelope = events::envelope(&key.namespace, event)?;
    events::hand_on(&*inner.environment.events, envelope).await
}
