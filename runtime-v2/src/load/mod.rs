//! Finding the shims of an earlier manager again.
//!
//! ```text
//!   every bundle, at the same time            then, behind those that are lost
//!   reserved --> examined --+--> live: entered
//!                           +--> leaked: its shim has no task --> Delete, Shutdown, removed
//!                           +--> dead: no shim answers --> `delete`, removed, one exit event
//!                           `--> kept: nothing can be known now; left as it is
//! ```
//! Each examination has one budget, and none waits for another: a shim that hangs holds up only
//! its own id. Cleaning begins when all examinations are over, since several bundles may share
//! one process, and it must be known who still uses it before anybody ends it.

mod clean;
mod examine;
mod scan;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    error::{Error, Result},
    id::Key,
    shim_manager::Reservation,
    task_manager::Inner,
};
use examine::{Examined, Lost};
use runtime_proto::errdefs::Code;
pub(crate) use scan::bundles;

/// Bundles looked at together. Each costs two descriptors while it is, and hardly any work.
const MAX_EXAMINERS: usize = 256;

/// How long readiness waits for the slowest shims; healthy ones answer within milliseconds.
const READY_GRACE: Duration = Duration::from_secs(1);

/// A load under way.
#[derive(Debug)]
pub struct Loading {
    progress: watch::Receiver<Progress>,
    work: JoinHandle<LoadReport>,
}

/// How far the examination has come.
#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    /// Bundles whose fate is not known yet.
    undecided: usize,
    /// Those that are found dead or leaked.
    lost: usize,
}

/// What became of the bundles.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Tasks that go on.
    pub loaded: Vec<Key>,
    /// Shims without a task, which were ended.
    pub leaked: Vec<Key>,
    /// Tasks whose shim was dead, which were cleaned up.
    pub dead: Vec<Key>,
    /// Bundles about which nothing could be known; they are untouched.
    pub kept: Vec<Key>,
}

impl Loading {
    /// Returns when all shims that answer at once are usable. The ids of the others are taken,
    /// and [`get`](crate::TaskManager::get) waits for them.
    pub async fn ready(&mut self) {
        let decided = self.progress.wait_for(|progress| progress.undecided == 0);
        // Either all are decided, or the load is over, or the grace is.
        let _ = timeout(READY_GRACE, decided).await;
    }

    /// How many shims and bundles have been found dead or leaked until now.
    pub fn lost(&self) -> usize {
        self.progress.borrow().lost
    }

    /// Waits until every bundle is loaded or cleaned up.
    ///
    /// # Errors
    /// `Internal` if the load was cut off.
    pub async fn finish(self) -> Result<LoadReport> {
        self.work.await.map_err(|error| Error::caused(Code::Internal, "load was cut off", error))
    }
}

/// Starts to load all bundles.
pub(crate) async fn load(inner: Arc<Inner>) -> Result<Loading> {
    let config = inner.shims.config().clone();
    let keys = tokio::task::spawn_blocking(move || scan::bundles(&config.state))
        .await
        .map_err(|error| Error::caused(Code::Internal, "scan of bundles was cut off", error))??;
    let reserved: Vec<Reservation> =
        keys.iter().filter_map(|key| inner.shims.reserve_to_examine(key).ok()).collect();
    let (examined, progress) =
        watch::channel(Progress { undecided: reserved.len(), ..Progress::default() });
    let held = inner.work().read_owned().await;
    let work = tokio::spawn(async move {
        let _held = held;
        let report = run(&inner, reserved, &examined).await;
        let bundles = keys.into_iter().collect();
        let orphans = scan::work_without_bundle(inner.shims.config(), bundles).await;
        clean::remove_work(&inner, orphans).await;
        let leftovers = scan::half_removed(inner.shims.config()).await;
        clean::remove_leftovers(&inner, leftovers).await;
        report
    });
    Ok(Loading { progress, work })
}

async fn run(
    inner: &Arc<Inner>,
    reserved: Vec<Reservation>,
    progress: &watch::Sender<Progress>,
) -> LoadReport {
    let mut report = LoadReport::default();
    let lost = examine_all(inner, reserved, progress, &mut report).await;
    let mut cleaning = Vec::new();
    for (reservation, lost) in lost {
        match &lost {
            Lost::Leaked(_) => report.leaked.push(reservation.key().clone()),
            Lost::Dead(_) => report.dead.push(reservation.key().clone()),
        }
        let inner = Arc::clone(inner);
        cleaning.push(tokio::spawn(async move { clean::clean(&inner, reservation, lost).await }));
    }
    for cleaned in cleaning {
        if let Err(error) = cleaned.await {
            tracing::error!(%error, "a clean-up at load was cut off");
        }
    }
    for keys in [&mut report.loaded, &mut report.leaked, &mut report.dead, &mut report.kept] {
        keys.sort();
    }
    tracing::info!(
        loaded = report.loaded.len(),
        leaked = report.leaked.len(),
        dead = report.dead.len(),
        kept = report.kept.len(),
        "shims loaded"
    );
    report
}

/// Examines all bundles at once; enters the live ones and gives back the lost ones.
async fn examine_all(
    inner: &Arc<Inner>,
    reserved: Vec<Reservation>,
    progress: &watch::Sender<Progress>,
    report: &mut LoadReport,
) -> Vec<(Reservation, Lost)> {
    let turns = Arc::new(Semaphore::new(MAX_EXAMINERS));
    let mut examining = tokio::task::JoinSet::new();
    for reservation in reserved {
        let (inner, turns) = (Arc::clone(inner), Arc::clone(&turns));
        examining.spawn(async move {
            // The semaphore is never closed.
            let _turn = turns.acquire_owned().await.ok();
            let examined = examine::examine(&inner, reservation.key()).await;
            (reservation, examined)
        });
    }
    let mut lost = Vec::new();
    while let Some(examined) = examining.join_next().await {
        let Ok((reservation, examined)) = examined else { continue };
        let key = reservation.key().clone();
        match examined {
            Examined::Live(entry) => {
                // Whoever waits for the decision finds it.
                inner.listen(&entry);
                reservation.commit(Arc::clone(&entry.shim));
                inner.enter(&entry);
                report.loaded.push(key);
            }
            Examined::Lost(what) => {
                if let Lost::Leaked(entry) = &what {
                    inner.listen(entry);
                }
                lost.push((reservation, what));
            }
            Examined::Unknown(error, location) => {
                if let Some(location) = location {
                    inner.shims.keep(reservation.key(), &location);
                }
                tracing::error!(namespace = %key.namespace, id = %key.id, %error, "a bundle is left as it is");
                report.kept.push(key);
            }
        }
        progress.send_modify(|progress| {
            progress.undecided -= 1;
            progress.lost = lost.len();
        });
    }
    lost
}
