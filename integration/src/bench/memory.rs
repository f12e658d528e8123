//! What shims hold and do while nothing happens, each with one running container; and what one more container in a pod
//! adds.

use std::time::Duration;

use super::contender::{Contender, OURS};
use super::figure::{Case, median};
use super::ground::Bench;
use super::sink::Sink;
use super::start::{GROUP, started};
use super::usage::{Switches, processor_time};
use crate::bundle::Bundle;
use crate::container::with_runtime;
use crate::failure::Result;
use crate::fixture::Fixture;
use crate::leak::Usage;
use crate::shim::Shim;
use crate::spec::Spec;
use crate::stdio::Stdio;

/// Until threads that helped with the last start have ended, Go's too.
const CALM: Duration = Duration::from_secs(1);

/// Between two looks at the threads of shims that are watched. Looking wakes nobody.
const LOOK: Duration = Duration::from_secs(1);

/// What is read of every shim, with the last part of its case's name, and its unit.
const METRICS: [(&str, &str, &str); 5] = [
    ("rss", "resident", "kB"),
    ("pss", "proportional", "kB"),
    ("dirty", "private dirty", "kB"),
    ("threads", "threads", ""),
    ("fds", "descriptors", ""),
];

/// A shim with its container.
struct Idle {
    bundle: Bundle,
    shim: Shim,
}

/// As many shims of each contender as `count` says; and, where these are many, what they do in a while.
pub(super) async fn idle(bench: &Bench, fixture: &Fixture, count: usize) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let watched = bench.effort.many == count;
    let mut measured = Vec::new();
    let mut watching = Vec::new();
    for (who, contender) in bench.shims.iter().enumerate() {
        let mut shims = Vec::new();
        for number in 0..count {
            bench.progress.step(&format!("{}, {} of {count}", contender.name, number + 1));
            shims.push(run(bench, fixture, contender, &format!("{who}-{number}")).await?);
        }
        // One population at a time: what is shared is shared within it. Kept for the watch, it disturbs nobody.
        measured.push((contender.name.clone(), look(&shims).await?));
        if watched {
            watching.push((contender.name.clone(), shims));
        } else {
            end(shims).await?;
        }
    }
    let mut cases = Vec::new();
    for (metric, (part, what, unit)) in METRICS.into_iter().enumerate() {
        let of = |(name, all): &(String, Vec<[f64; 5]>)| {
            (name.clone(), all.iter().filter_map(|one| one.get(metric).copied()).collect())
        };
        let id = format!("idle.{count}.{part}");
        let title = format!("idle shim, one of {count}: {what}");
        cases.push(Case::new(id, title, unit, OURS, measured.iter().map(of).collect()));
    }
    if watched {
        cases.extend(watch(bench, &watching).await?);
    }
    for (_, shims) in watching {
        end(shims).await?;
    }
    Ok(cases)
}

/// Processor time and context switches of shims to which nothing happens.
async fn watch(bench: &Bench, all: &[(String, Vec<Idle>)]) -> Result<Vec<Case>> {
    let time = bench.effort.watch.as_secs();
    let begin = |(_, shims): &(String, Vec<Idle>)| {
        shims.iter().map(|idle| Watched::begin(idle.shim.pid)).collect()
    };
    let mut watched: Vec<Vec<Watched>> = all.iter().map(begin).collect::<Result<_>>()?;
    for second in 0..time {
        bench.progress.step(&format!("watching, {second} of {time} s"));
        tokio::time::sleep(LOOK).await;
        watched.iter_mut().flatten().for_each(|watched| watched.switches.look());
    }
    let (mut times, mut counts) = (Vec::new(), Vec::new());
    for ((name, _), watched) in all.iter().zip(&watched) {
        times.push((name.clone(), watched.iter().map(Watched::time).collect::<Result<_>>()?));
        let switches = watched.iter().map(|watched| watched.switches.count() as f64);
        counts.push((name.clone(), switches.collect()));
    }
    let title = |what: &str| format!("an idle shim in {time} s: {what}");
    Ok(vec![
        Case::new("idle.cpu", title("processor time"), "ms", OURS, times),
        Case::new("idle.switches", title("context switches"), "", OURS, counts),
    ])
}

/// A shim that is watched.
struct Watched {
    pid: u32,
    /// Processor time until then, in nanoseconds.
    before: f64,
    switches: Switches,
}

impl Watched {
    fn begin(pid: u32) -> Result<Self> {
        Ok(Self { pid, before: processor_time(pid)?, switches: Switches::of(pid) })
    }

    /// Processor time since then, in milliseconds.
    fn time(&self) -> Result<f64> {
        Ok((processor_time(self.pid)? - self.before) / 1e6)
    }
}

/// What one more container adds to the shim of its pod.
pub(super) async fn pod(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let added = bench.effort.added;
    let mut grown = Vec::new();
    for (who, contender) in bench.shims.iter().enumerate() {
        let spec =
            Spec::new(&["sleep", "1000000"]).annotation(GROUP, &fixture.id(&format!("pod{who}")));
        let first = fixture.bundle(&format!("pod{who}"), &spec)?;
        let (shim, _) = started(contender, fixture, &first).await?;
        let mut bundles = vec![first];
        create(bench, &shim, bundles.first()).await?;
        let pod = Idle { bundle: bundles.remove(0), shim };
        let before = look(std::slice::from_ref(&pod)).await?;
        for number in 0..added {
            bench.progress.step(&format!("{}, {} of {added}", contender.name, number + 1));
            bundles.push(fixture.bundle(&format!("{who}-{number}"), &spec)?);
            create(bench, &pod.shim, bundles.last()).await?;
        }
        let after = look(std::slice::from_ref(&pod)).await?;
        grown.push((contender.name.clone(), before, after));
        for bundle in &bundles {
            pod.shim.retire(&bundle.id).await?;
        }
        end(vec![pod]).await?;
    }
    let mut cases = Vec::new();
    for (metric, (part, what, unit)) in METRICS.into_iter().enumerate() {
        let middle = |looks: &[[f64; 5]]| {
            median(&looks.iter().filter_map(|look| look.get(metric).copied()).collect::<Vec<_>>())
        };
        let samples = grown.iter().map(|(name, before, after)| {
            (name.clone(), vec![(middle(after) - middle(before)) / added as f64])
        });
        let title = format!("one more container in a pod: {what}");
        cases.push(Case::new(format!("pod.{part}"), title, unit, OURS, samples.collect()));
    }
    Ok(cases)
}

async fn run(bench: &Bench, fixture: &Fixture, who: &Contender, name: &str) -> Result<Idle> {
    let bundle = fixture.bundle(name, &Spec::new(&["sleep", "1000000"]))?;
    let (shim, _) = started(who, fixture, &bundle).await?;
    create(bench, &shim, Some(&bundle)).await?;
    Ok(Idle { bundle, shim })
}

async fn create(bench: &Bench, shim: &Shim, bundle: Option<&Bundle>) -> Result {
    let Some(bundle) = bundle else { return Ok(()) };
    let options = bench.quickest().map(|runtime| with_runtime(&runtime.binary)).transpose()?;
    shim.tasks.create_with(bundle, &Stdio::null(), options).await?;
    shim.tasks.start(&bundle.id, "").await?;
    Ok(())
}

async fn look(shims: &[Idle]) -> Result<Vec<[f64; 5]>> {
    tokio::time::sleep(CALM).await;
    // Pages of a binary that has just been written are dirty, and would count as such.
    nix::unistd::sync();
    let look = |idle: &Idle| {
        let usage = Usage::of(idle.shim.pid)?;
        let memory = [usage.rss, usage.pss, usage.private_dirty].map(|kb| kb as f64);
        let [rss, pss, dirty] = memory;
        Ok([rss, pss, dirty, usage.threads as f64, usage.fds.len() as f64])
    };
    shims.iter().map(look).collect()
}

async fn end(shims: Vec<Idle>) -> Result {
    for idle in &shims {
        idle.shim.retire(&idle.bundle.id).await?;
    }
    for idle in &shims {
        idle.shim.gone().await?;
    }
    Ok(())
}
