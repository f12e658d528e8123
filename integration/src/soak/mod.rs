//! One shim under lasting work: what it holds after thousands of processes is what it held before them.
//!
//! A pod's shim serves containers and execs of every kind, and reaps orphans that nobody told it of. Everything is
//! checked as it goes: exit statuses, outputs, one exit event for each process and none for an orphan. Before and after,
//! what the shim holds is measured while nothing is going on.

mod work;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::bundle::Bundle;
use crate::container::{Container, with_runtime};
use crate::deadline::{self, HANG};
use crate::event::{Event, Exit};
use crate::failure::{Context, Failure, Result};
use crate::fakectrd::FakeContainerd;
use crate::fixture::Fixture;
use crate::leak::Usage;
use crate::shim::{Launch, Started};
use crate::spec::Spec;
use crate::stdio::Stdio;
use crate::{ensure, ensure_eq};

/// The annotation that makes containers share a shim.
const GROUP: &str = "io.containerd.runc.v2.group";

/// Between two looks at a shim that comes to rest: longer than its helper threads stay idle.
const LOOK: Duration = Duration::from_millis(500);

/// How often in a row a shim has to look the same to be at rest.
const SAME: usize = 3;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Containers, from create to delete.
    pub containers: usize,
    /// Execs, from their reservation to their delete.
    pub execs: usize,
    /// Processes that the shim has to reap without knowing them.
    pub orphans: usize,
}

/// What the shim held at rest.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Warmed up, before the work.
    pub before: Usage,
    /// After the work.
    pub after: Usage,
}

/// How much more memory a shim may hold after the work than before, in kB. An allocator keeps some free pieces of every
/// size, which pin the pages they are in, and the stacks of a few threads that have ended: that is reached once, and
/// does not grow with the work, as a leak does. 16 bytes a process would pass it in the long run.
const MARGIN: u64 = 256;

impl Outcome {
    /// Holds the shim to it: as many descriptors and threads as before, and no more memory.
    ///
    /// # Errors
    /// What it holds more of.
    pub fn check(&self) -> Result {
        let (before, after) = (&self.before, &self.after);
        let sorted = |usage: &Usage| {
            let mut fds = usage.fds.clone();
            fds.sort_unstable();
            fds
        };
        let (more, fewer) = (sorted(after), sorted(before));
        ensure!(more.len() == fewer.len(), "descriptors: {more:?}, before: {fewer:?}");
        ensure_eq!(after.threads, before.threads, "threads");
        for (what, after, before) in [
            ("resident", after.rss, before.rss),
            ("private dirty", after.private_dirty, before.private_dirty),
        ] {
            ensure!(
                after <= before + MARGIN,
                "{after} kB are {what}, {MARGIN} kB more than {before} kB before"
            );
        }
        Ok(())
    }
}

/// A pod with its shim, and the sink of its events.
#[derive(Debug)]
pub struct Soak<'a> {
    fixture: &'a Fixture,
    sink: FakeContainerd,
    runtime: PathBuf,
    /// Lives throughout; execs and orphans are in it.
    pod: Container,
    /// How many names have been given out.
    named: AtomicUsize,
    /// How many processes ran, and so have to have one exit event each.
    ran: AtomicUsize,
}

impl<'a> Soak<'a> {
    /// Starts the pod, with this OCI runtime.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(fixture: &'a Fixture, runtime: PathBuf) -> Result<Self> {
        let sink = fixture.fake_containerd()?;
        // In the host's pid namespace, where orphans are handed to the shim instead of to the container's init.
        let spec = in_pod(fixture, Spec::new(&["sleep", "100000"])).without_namespace("pid");
        let pod =
            Container::run_with(fixture, "pod", &spec, &Stdio::null(), Some(&runtime)).await?;
        let (named, ran) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Self { fixture, sink, runtime, pod, named, ran })
    }

    /// Warms the shim up, measures, works, measures again. `progress` hears a sentence now and then.
    ///
    /// # Errors
    /// When anything goes other than it has to; memory is the caller's to judge.
    pub async fn run(&self, load: Load, progress: impl Fn(&str)) -> Result<Outcome> {
        self.orphans_come_to_the_shim().await?;
        let warm_up = Load {
            containers: load.containers.min(10 * work::CONTAINERS),
            execs: load.execs.min(20 * work::EXECS),
            orphans: load.orphans.min(5 * work::ORPHANS),
        };
        self.work(warm_up, &|_: &str| {}).await.context("warming up")?;
        let before = self.at_rest().await?;
        progress(&format!("warmed up: {}", describe(&before)));
        self.work(load, &progress).await?;
        let after = self.at_rest().await?;
        progress(&format!("at rest: {}", describe(&after)));
        self.every_exit_was_told_once().await?;
        Ok(Outcome { before, after })
    }

    /// Ends the pod and its shim.
    ///
    /// # Errors
    /// When they do not end.
    pub async fn end(self) -> Result {
        self.pod.retire().await
    }

    async fn work(&self, load: Load, progress: &impl Fn(&str)) -> Result {
        self.spread("containers", load.containers, progress, async |number| {
            self.one_container(number).await
        })
        .await?;
        self.spread("execs", load.execs, progress, async |number| self.one_exec(number).await)
            .await?;
        let times = load.orphans.div_ceil(work::ORPHANS);
        self.spread("execs that leave orphans", times, progress, async |_| self.orphans().await)
            .await
    }

    /// Does a piece of work `count` times, four at a time.
    async fn spread(
        &self,
        what: &str,
        count: usize,
        progress: &impl Fn(&str),
        piece: impl AsyncFn(usize) -> Result,
    ) -> Result {
        let tell = (count / 10).max(1);
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let worker = async || -> Result {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(());
                }
                piece(number).await.context(format!("{what}, number {number}"))?;
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if done % tell == 0 {
                    let usage = Usage::of(self.pod.shim.pid)?;
                    progress(&format!("{what}: {done} of {count}; {}", describe(&usage)));
                }
            }
        };
        tokio::try_join!(worker(), worker(), worker(), worker()).map(drop)
    }

    /// What the shim holds once that no longer changes.
    async fn at_rest(&self) -> Result<Usage> {
        let children = format!("/proc/{0}/task/{0}/children", self.pod.shim.pid);
        let mut alike = 0;
        let mut last = Usage::of(self.pod.shim.pid)?;
        let start = std::time::Instant::now();
        while alike < SAME {
            tokio::time::sleep(LOOK).await;
            let now = Usage::of(self.pod.shim.pid)?;
            let few = std::fs::read_to_string(&children).unwrap_or_default();
            let alone = few.split_whitespace().all(|pid| pid == self.pod.pid.to_string());
            let same = alone && now.fds.len() == last.fds.len() && now.threads == last.threads;
            alike = if same { alike + 1 } else { 0 };
            last = now;
            if start.elapsed() > HANG {
                return Err(Failure::new(format!("the shim does not come to rest: {last:?}")));
            }
        }
        Ok(last)
    }

    /// One exit event for each process that ran, and none for anything else.
    async fn every_exit_was_told_once(&self) -> Result {
        let expected = self.ran.load(Ordering::Relaxed);
        let count = || {
            self.sink
                .received()
                .iter()
                .filter(|received| matches!(received.event, Ok(Event::Exit(Exit { .. }))))
                .count()
        };
        deadline::until("all exit events", HANG, || count() >= expected).await?;
        ensure_eq!(count(), expected, "number of exit events");
        Ok(())
    }

    /// A bundle in the pod, and the options that name the runtime. The manager asks the binary where the pod's shim is.
    async fn bundle(&self, name: &str, spec: Spec) -> Result<Bundle> {
        let bundle = self.fixture.bundle(name, &in_pod(self.fixture, spec))?;
        let ran = Launch::new(self.fixture, &bundle).run("start").await?;
        ensure!(ran.status.success(), "start: {}: {}", ran.status, ran.stderr);
        let joined = Started::read(&ran.stdout)?;
        ensure_eq!(joined.address, self.pod.shim.started.address, "the shim of {}", bundle.id);
        Ok(bundle)
    }

    fn options(
        &self,
    ) -> Result<Option<containerd_shim_protos::protobuf::well_known_types::any::Any>> {
        with_runtime(&self.runtime).map(Some)
    }

    fn name(&self, kind: &str) -> String {
        format!("{kind}{}", self.named.fetch_add(1, Ordering::Relaxed))
    }

    fn one_ran(&self) {
        self.ran.fetch_add(1, Ordering::Relaxed);
    }
}

fn in_pod(fixture: &Fixture, spec: Spec) -> Spec {
    spec.annotation(GROUP, &fixture.id("pod"))
}

/// What is held, in one line.
#[must_use]
pub fn describe(usage: &Usage) -> String {
    format!(
        "{} descriptors, {} threads, {} kB resident, {} kB of its own",
        usage.fds.len(),
        usage.threads,
        usage.rss,
        usage.private_dirty
    )
}
