//! Looking at the shims of a state directory from outside: whoever manages them, ours or
//! containerd's own plugin, notices nothing but a few calls, and nothing on disk changes.

use std::{path::PathBuf, sync::Arc, time::Duration};

use runtime_proto::{
    bootstrap::Bootstrap,
    errdefs::Code,
    task::{ConnectRequest, ConnectResponse},
};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    bundle::{Bundle, Located, Origin},
    client::TaskClient,
    config::Config,
    error::{self, Error, Result},
    id::Key,
    load, procfs,
    shim::{Parts, Shim},
    shim_manager,
    shim_users::Users,
    task::{ProcessId, ProcessState, pids, state},
};

/// For each question to a shim; healthy ones answer within milliseconds.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Bundles looked at together.
const MAX_AT_ONCE: usize = 64;

/// Where a shim is and what it speaks.
pub use runtime_proto::bootstrap::Bootstrap as Location;

/// The newest version of the task API there is; a shim that speaks an older one is found out.
pub const NEWEST: i32 = runtime_proto::bootstrap::MAX_VERSION;

/// A bundle and what is behind it.
#[derive(Debug)]
pub struct Inspected {
    /// The directory.
    pub bundle: Bundle,
    /// The shim's binary, if that is noted.
    pub binary: Option<PathBuf>,
    /// Init's pid, if the OCI runtime got so far.
    pub init_pid: Option<u32>,
    /// The sandbox whose shim this bundle shares, if it is noted.
    pub sandbox: Option<String>,
    /// The shim.
    pub shim: ShimState,
}

/// What is known of a bundle's shim.
#[derive(Debug)]
pub enum ShimState {
    /// No address is noted: it was never started, or its end is behind it.
    Unnoted,
    /// What is noted cannot be read.
    Garbled(String),
    /// Nobody listens at its address.
    Dead {
        /// Where it was.
        location: Bootstrap,
    },
    /// It cannot be asked, for another reason.
    Silent {
        /// Where it is.
        location: Bootstrap,
        /// Why.
        error: Error,
    },
    /// It answers.
    Alive(Alive),
}

/// A shim that answers.
#[derive(Debug)]
pub struct Alive {
    /// Where it is, and the API version it really speaks.
    pub location: Bootstrap,
    /// Its process.
    pub pid: u32,
    /// The task of the id it was asked about.
    pub task: TaskState,
}

/// Whether a shim has a task.
#[derive(Debug)]
pub enum TaskState {
    /// This one.
    Has(ProcessState),
    /// None: it says so, and the OCI runtime behind it does.
    HasNone,
    /// It does not say.
    Unclear(Error),
}

/// Looks at every bundle below the state directory; in order of their ids.
///
/// # Errors
/// When the state directory cannot be read.
pub async fn inspect(config: &Config) -> Result<Vec<Inspected>> {
    let state = config.state.clone();
    let keys = tokio::task::spawn_blocking(move || load::bundles(&state))
        .await
        .map_err(|error| Error::caused(Code::Internal, "scan of bundles was cut off", error))??;
    let turns = Arc::new(Semaphore::new(MAX_AT_ONCE));
    let mut looks = JoinSet::new();
    for key in keys {
        let (bundle, turns) = (Bundle::at(config, key), Arc::clone(&turns));
        looks.spawn(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire_owned().await.ok();
            look(bundle).await
        });
    }
    let mut found = looks.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    found.sort_by(|a, b| a.bundle.key().cmp(b.bundle.key()));
    Ok(found)
}

/// Looks at one bundle.
///
/// # Errors
/// When it cannot be read.
pub async fn look(bundle: Bundle) -> Result<Inspected> {
    let (located, binary, init_pid, sandbox) =
        bundle.blocking(|b| Ok((b.located(), b.binary_path(), b.init_pid(), b.sandbox()))).await?;
    let shim = match located {
        Located::Nowhere => ShimState::Unnoted,
        Located::Garbled(why) => ShimState::Garbled(why),
        Located::At(location) | Located::AtLegacy(location) => ask(&bundle, location).await,
    };
    Ok(Inspected { bundle, binary, init_pid, sandbox, shim })
}

/// Asks a shim who it is and whether it has the task of this bundle, which need not exist.
pub async fn ask(bundle: &Bundle, location: Bootstrap) -> ShimState {
    match try_ask(bundle, location.clone()).await {
        Ok(alive) => ShimState::Alive(alive),
        // A missing file, and one that nobody listens at.
        Err(error)
            if !error::is_call(&error)
                && matches!(error.kind(), Code::NotFound | Code::Unavailable) =>
        {
            ShimState::Dead { location }
        }
        Err(error) => ShimState::Silent { location, error },
    }
}

async fn try_ask(bundle: &Bundle, location: Bootstrap) -> Result<Alive> {
    let key = bundle.key();
    let client = TaskClient::connect(&location, &key.namespace, ASK_TIMEOUT).await?;
    let mut request = ConnectRequest::new();
    request.id = key.id.to_string();
    let asked = client.first::<_, ConnectResponse>("Connect", &request, Some(ASK_TIMEOUT)).await;
    let answer = asked.map_err(|error| error::call(format!("Connect of {key}"), error))?.answer;
    let shim = Shim::new(Parts {
        bundle: bundle.clone(),
        location,
        client,
        binary: None,
        origin: Origin::Joined,
        log: None,
        users: Users::default(),
    });
    let task = find_task(&shim).await;
    Ok(Alive { location: shim.location(), pid: answer.shim_pid, task })
}

async fn find_task(shim: &Shim) -> TaskState {
    match state(shim, &ProcessId::Init, ASK_TIMEOUT).await {
        Ok(state) => TaskState::Has(state),
        Err(error) if error.kind() == Code::NotFound => match pids(shim, ASK_TIMEOUT).await {
            Err(error) if error.kind() == Code::NotFound => TaskState::HasNone,
            Ok(processes) if processes.is_empty() => TaskState::HasNone,
            Ok(_) => TaskState::Unclear(error),
            Err(error) => TaskState::Unclear(error),
        },
        Err(error) => TaskState::Unclear(error),
    }
}

/// The files of the sockets at which a process listens; none if it has ended.
pub fn listens_at(pid: u32) -> Vec<PathBuf> {
    i32::try_from(pid).map_or_else(|_| Vec::new(), procfs::listens_at)
}

/// Asks a shim without tasks to end; one that has some ignores it. Waits a moment for its end.
pub async fn dismiss(key: &Key, location: &Bootstrap) {
    shim_manager::farewell(key, location).await;
}
