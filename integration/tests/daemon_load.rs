//! Many containers at once through the daemon, and daemons that are killed meanwhile: nothing is left, nothing lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use integration::ctr::Ctr;
use integration::daemon::{Daemon, in_front_of};
use integration::failure::Result;
use integration::image;
use integration::{ensure, ensure_eq};
use nix::sys::signal::Signal;
use tokio::task::JoinSet;

/// Clients at one time.
const CLIENTS: usize = 16;

/// Runs one `ctr` command for each id, as many at a time as there are clients.
async fn at_once(
    ctr: &Ctr,
    ids: &[String],
    words: fn(&str) -> Vec<&str>,
) -> Result<BTreeMap<String, Output>> {
    let left = Arc::new(Mutex::new(ids.to_vec()));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (left, ctr) = (Arc::clone(&left), ctr.clone());
        let next = move || left.lock().unwrap_or_else(PoisonError::into_inner).pop();
        clients.spawn(async move {
            let mut done = Vec::new();
            while let Some(id) = next() {
                let output = ctr.output(&words(&id)).await?;
                done.push((id, output));
            }
            Result::Ok(done)
        });
    }
    let mut all = BTreeMap::new();
    while let Some(done) = clients.join_next().await {
        all.extend(done??);
    }
    Ok(all)
}

/// What went wrong with some of them, if anything did.
fn failures(outputs: &BTreeMap<String, Output>) -> Vec<String> {
    let failed = outputs.iter().filter(|(_, output)| !output.status.success());
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).trim().to_owned();
    failed.map(|(id, output)| format!("{id}: {}", said(output))).collect()
}

fn ids(daemon: &Daemon<'_>, count: usize) -> Vec<String> {
    (0..count).map(|n| daemon.id(&format!("n{n:03}"))).collect()
}

#[test]
fn two_hundred_containers_sixteen_at_a_time_leave_nothing() -> Result {
    in_front_of("2", async |_, _, daemon| {
        let ids = ids(daemon, 200);
        let ran = at_once(daemon.client(), &ids, |id| {
            vec!["run", "--rm", "--null-io", image::NAME, id, "true"]
        });
        let ran = ran.await?;
        ensure_eq!(failures(&ran), Vec::<String>::new(), "runs that failed");
        ensure_eq!(ran.len(), 200, "containers that ran");
        for list in ["tasks", "containers"] {
            let listed = daemon.must(&[list, "ls", "--quiet"]).await?;
            ensure_eq!(listed.trim(), "", "{list} that are left");
        }
        Ok(())
    })
}

/// Numbers that look random; the same for the same seed.
struct Random(u64);

impl Random {
    /// From `SEED`, or the clock; said, so that a failure can be tried again.
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(u64::from(now.subsec_nanos())) | 1;
        // Where the test runner does not swallow it: what is found to be left is told later.
        let _ = writeln!(std::io::stderr(), "random by SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Disturbs at random moments for as long as a load lasts; gives what came of the load, and how often it was disturbed.
async fn disturbed<T: Send + 'static>(
    load: impl Future<Output = Result<T>> + Send + 'static,
    random: &mut Random,
    mut disturb: impl AsyncFnMut(u64) -> Result,
) -> Result<(T, usize)> {
    let mut load = tokio::spawn(load);
    let mut times = 0;
    loop {
        let pause = Duration::from_millis(50 + random.below(700));
        tokio::select! {
            done = &mut load => return Ok((done??, times)),
            () = tokio::time::sleep(pause) => {}
        }
        disturb(random.below(3)).await?;
        times += 1;
    }
}

/// Ends the daemon, two times in three without a warning, and starts it again.
async fn end_daemon(daemon: &mut Daemon<'_>, draw: u64) -> Result {
    if draw > 0 {
        daemon.signal(Signal::SIGKILL).await?;
    } else {
        ensure_eq!(daemon.signal(Signal::SIGTERM).await?, Some(0), "exit code of a stop");
    }
    daemon.start_again().await
}

fn run(id: &str) -> Vec<&str> {
    vec!["run", "--detach", "--null-io", image::NAME, id, "sleep", "1000"]
}

fn remove(id: &str) -> Vec<&str> {
    vec!["tasks", "rm", "--force", id]
}

/// Who was told that a container runs is right, whatever came after.
async fn promises_are_kept(daemon: &Daemon<'_>, started: &BTreeMap<String, Output>) -> Result {
    let listed = daemon.must(&["tasks", "ls"]).await?;
    let running = listed.lines().filter(|line| line.ends_with("RUNNING"));
    let running: BTreeSet<&str> =
        running.filter_map(|line| line.split_whitespace().next()).collect();
    let promised = started.iter().filter(|(_, output)| output.status.success());
    for (id, _) in promised {
        ensure!(running.contains(id.as_str()), "{id} is lost:\n{listed}");
    }
    Ok(())
}

/// Removes what is left of some containers; of most nothing is.
async fn all_go(daemon: &Daemon<'_>, ids: &[String]) -> Result {
    at_once(daemon.client(), ids, remove).await?;
    let listed = daemon.must(&["tasks", "ls", "--quiet"]).await?;
    ensure_eq!(listed.trim(), "", "tasks that stay");
    at_once(daemon.client(), ids, |id| vec!["containers", "rm", id]).await?;
    at_once(daemon.client(), ids, |id| vec!["snapshots", "rm", id]).await?;
    let listed = daemon.must(&["containers", "ls", "--quiet"]).await?;
    ensure_eq!(listed.trim(), "", "containers that stay");
    Ok(())
}

#[test]
fn daemons_that_end_at_random_moments_of_a_load_lose_and_leave_nothing() -> Result {
    in_front_of("2", async |_, _, daemon| {
        let mut random = Random::new();
        let ids = ids(daemon, 64);
        let (ctr, mine) = (daemon.client().clone(), ids.clone());
        let load = async move { at_once(&ctr, &mine, run).await };
        let end = async |draw| end_daemon(daemon, draw).await;
        let (started, ends) = disturbed(load, &mut random, end).await?;
        ensure!(ends > 0, "the load was over before the first end");
        promises_are_kept(daemon, &started).await?;

        let (ctr, mine) = (daemon.client().clone(), ids.clone());
        let load = async move { at_once(&ctr, &mine, remove).await };
        disturbed(load, &mut random, async |draw| end_daemon(daemon, draw).await).await?;
        all_go(daemon, &ids).await
    })
}

#[test]
fn a_containerd_killed_at_random_moments_of_a_load_costs_no_container() -> Result {
    in_front_of("2", async |_, containerd, daemon| {
        let mut random = Random::new();
        let ids = ids(daemon, 32);
        let (ctr, mine) = (daemon.client().clone(), ids.clone());
        let load = async move { at_once(&ctr, &mine, run).await };
        let kill = async |_| containerd.restart(Signal::SIGKILL).await;
        let (started, kills) = disturbed(load, &mut random, kill).await?;
        ensure!(kills > 0, "the load was over before the first kill");
        promises_are_kept(daemon, &started).await?;
        all_go(daemon, &ids).await
    })
}
