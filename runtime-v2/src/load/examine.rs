//! What one bundle is: a live task, a shim without one, or what a dead shim has left.

use std::{path::PathBuf, sync::Arc, time::Duration};

use runtime_proto::{
    bootstrap::Bootstrap,
    errdefs::Code,
    task::{ConnectRequest, ConnectResponse},
};
use tokio::time::timeout;

use crate::{
    bundle::{Bundle, EndNote, Located, Origin},
    client::{First, TaskClient},
    dead_bundle::Dead,
    dead_shim::unknown_exit,
    error::{self, Error, Result},
    id::Key,
    procfs,
    shim::{Parts, Shim},
    shim_log::ShimLog,
    stores::look,
    task::{Entry, ProcessId, pids, state},
    task_manager::Inner,
};

/// What was found.
pub(super) enum Examined {
    /// A task that goes on.
    Live(Arc<Entry>),
    /// Something to clean up.
    Lost(Lost),
    /// The records that would tell cannot be read; a bundle is not removed on a guess, nor is the
    /// shim that it notes.
    Unknown(Error, Option<Bootstrap>),
}

/// Something to clean up.
pub(super) enum Lost {
    /// A shim that has no task, or has it no more.
    Leaked(Arc<Entry>),
    /// No shim, or none that answers.
    Dead(Box<Dead>),
}

/// Looks at a bundle.
pub(super) async fn examine(inner: &Arc<Inner>, key: &Key) -> Examined {
    let bundle = Bundle::at(inner.shims.config(), key.clone());
    let read_at = procfs::now();
    let read = bundle
        .blocking(|bundle| Ok((bundle.located(), bundle.binary_path(), bundle.origin())))
        .await;
    let (located, noted, origin) = match read {
        Ok(read) => read,
        Err(error) => return Examined::Unknown(error, None),
    };
    let binary = match binary(inner, key, noted).await {
        Ok(binary) => binary,
        Err(error) => return Examined::Unknown(error, located.location()),
    };
    let dead = |location, had_task| {
        let bundle = bundle.clone();
        let binary = binary.clone();
        let dead = Dead { bundle, binary, location, read_at, had_task, origin };
        Examined::Lost(Lost::Dead(Box::new(dead)))
    };
    let location = match located {
        Located::Nowhere => return dead(None, false),
        Located::Garbled(why) => {
            tracing::warn!(namespace = %key.namespace, id = %key.id, why, "unreadable bundle");
            return dead(None, true);
        }
        Located::At(location) => location,
        Located::AtLegacy(location) => {
            let migrated = location.clone();
            if let Err(error) = bundle.blocking(move |b| b.write_bootstrap(&migrated)).await {
                tracing::warn!(namespace = %key.namespace, id = %key.id, %error, "address not migrated");
            }
            location
        }
    };
    let connecting = connect(inner, &bundle, binary.clone(), location.clone(), origin);
    // For everything about this bundle together.
    let limit = inner.shims.config().timeouts.load;
    let failure = match timeout(limit, connecting).await {
        Ok(Ok(answered)) => return judge(inner, answered).await,
        // Nothing of this is about the shim, whose container would be killed for it.
        Ok(Err(error)) if is_our_own(&error) => return Examined::Unknown(error, Some(location)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {limit:?}"),
    };
    tracing::warn!(namespace = %key.namespace, id = %key.id, failure, "shim is dead");
    dead(Some(location), true)
}

/// Whether an error says something about this process, and nothing about the shim.
fn is_our_own(error: &Error) -> bool {
    matches!(error.kind(), Code::ResourceExhausted | Code::PermissionDenied)
}

/// A shim that answers, and init's pid if it has the task.
struct Answered {
    shim: Shim,
    task: Option<u32>,
    published: Option<EndNote>,
}

/// What a shim that answers is. The records have a budget of their own: they must not make a
/// live shim a dead one.
async fn judge(inner: &Inner, answered: Answered) -> Examined {
    let Answered { shim, task, published } = answered;
    let leaked = task.is_none() && !is_sandbox(inner, shim.key()).await;
    let entry = Entry::new(Arc::new(shim), task.unwrap_or(0));
    if let Some(end) = published {
        entry.read_note(end);
    }
    if !leaked {
        return Examined::Live(entry);
    }
    entry.note_leaked(entry.published().unwrap_or_else(|| unknown_exit(None)));
    Examined::Lost(Lost::Leaked(entry))
}

/// The shim's binary: what the bundle says, else what the container's record says. A binary that
/// has gone does not matter as long as the shim lives.
async fn binary(inner: &Inner, key: &Key, noted: Option<PathBuf>) -> Result<Option<PathBuf>> {
    if let Some(noted) = noted {
        return Ok(inner.shims.present(&noted));
    }
    let recorded = look(inner.environment.containers.runtime(key)).await?;
    Ok(recorded.and_then(|runtime| inner.shims.resolve(&runtime).ok()))
}

async fn connect(
    inner: &Arc<Inner>,
    bundle: &Bundle,
    binary: Option<PathBuf>,
    location: Bootstrap,
    origin: Origin,
) -> Result<Answered> {
    let key = bundle.key();
    let limit = inner.shims.config().timeouts.load;
    let client = TaskClient::connect(&location, &key.namespace, limit).await?;
    let log = match origin {
        Origin::Started => log(bundle).await?,
        Origin::Shared | Origin::Joined => None,
    };
    let (bundle, users) = (bundle.clone(), inner.shims.users());
    let shim = Shim::new(Parts { bundle, location, client, binary, origin, log, users });
    let mut request = ConnectRequest::new();
    request.id = key.id.to_string();
    let first: First<ConnectResponse> = shim.first_call("Connect", &request, Some(limit)).await?;
    if first.downgraded
        && let Err(error) = shim.note_downgrade().await
    {
        // A full disk is no reason to lose a live container: the next load finds it out anew.
        tracing::warn!(namespace = %key.namespace, id = %key.id, %error, "downgrade not noted");
    }
    let task = find_task(&shim, limit).await?;
    let task = task.map(|pid| if pid == 0 { first.answer.task_pid } else { pid });
    let published = shim.bundle().blocking(|bundle| Ok(bundle.end())).await?;
    Ok(Answered { shim, task, published })
}

/// The shim's log. One that is no fifo any more, and cannot be made one, is nobody's to read; that
/// is no reason to lose a container.
async fn log(bundle: &Bundle) -> Result<Option<ShimLog>> {
    let key = bundle.key();
    let opened = match bundle.blocking(Bundle::log_fifo).await {
        Ok(fifo) => match ShimLog::open(&fifo, key) {
            // The shim writes into it and would stand still.
            Err(error) if is_our_own(&error) => return Err(error),
            opened => opened,
        },
        Err(error) => Err(error),
    };
    if let Err(error) = &opened {
        tracing::warn!(namespace = %key.namespace, id = %key.id, %error, "the log of a shim is not read");
    }
    Ok(opened.ok())
}

/// Init's pid if the shim has the task.
///
/// `State` answers from memory, also for a task that has ended in the meantime and waits to be
/// deleted. `Connect` does not tell: Go's shim answers it for any id. Only where `State` leaves a
/// doubt is the OCI runtime asked, by `Pids`: without any process there is no task, and an answer
/// that is neither leaves the task in place.
async fn find_task(shim: &Shim, limit: Duration) -> Result<Option<u32>> {
    match state(shim, &ProcessId::Init, limit).await {
        Ok(state) if state.pid != 0 || state.exit.is_some() => return Ok(Some(state.pid)),
        Err(error) if matches!(error.kind(), Code::DeadlineExceeded | Code::Unavailable) => {
            return Err(error);
        }
        Ok(_) | Err(_) => {}
    }
    match pids(shim, limit).await {
        Ok(processes) => Ok(processes.first().map(|_| 0)),
        Err(error) if error::is_closed(&error) => Err(error),
        Err(error) if error.kind() == Code::NotFound => Ok(None),
        Err(_) => Ok(Some(0)),
    }
}

/// Whether a shim may be without a task. Records that cannot be read speak for it.
async fn is_sandbox(inner: &Inner, key: &Key) -> bool {
    look(inner.environment.sandboxes.contains(key)).await.unwrap_or_else(|error| {
        tracing::warn!(namespace = %key.namespace, id = %key.id, %error, "taken for a sandbox");
        true
    })
}
