//! What a shim still holds after work: descriptors, threads and memory, compared with before.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::burst::together;
use super::calls::{Pod, one};
use super::contender::{Contender, GO, OURS, Runtime};
use super::figure::Case;
use super::ground::Bench;
use super::node::{self, MANAGER, Manager, Node};
use super::records::Made;
use super::sink::Sink;
use super::start::{GROUP, forget};
use crate::deadline::HANG;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::leak::Usage;
use crate::spec::{self, Spec};
use crate::stdio::Stdio;

/// Pieces of work under way at the same time.
const AT_A_TIME: usize = 4;

/// Between two looks at a process that comes to rest.
const LOOK: Duration = Duration::from_millis(500);

/// How long a shim has to look the same to be at rest: longer than its helper threads stay idle.
const SHIM_CALM: Duration = Duration::from_millis(1500);

/// The same of the manager, whose helper threads stay for ten seconds. How many there are is chance, and each holds memory.
const MANAGER_CALM: Duration = Duration::from_secs(11);

/// What is looked at.
const METRICS: [(&str, &str, &str); 3] = [
    ("rest.fds", "descriptors", ""),
    ("rest.threads", "threads", ""),
    ("rest.rss", "resident memory", "kB"),
];

/// Ours and the newest of containerd's: it takes long, and the older ones differ little.
pub(super) async fn measure(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let runtime = bench.quickest().ok_or_else(|| Failure::new("no OCI runtime"))?;
    let newest = bench.shims.iter().rfind(|shim| shim.name.starts_with(GO));
    let mut grown = Vec::new();
    for contender in bench.shims.iter().filter(|shim| shim.is_ours()).chain(newest) {
        grown.push((contender.name.clone(), growth(bench, fixture, contender, runtime).await?));
    }
    let (containers, execs) = bench.effort.work;
    let case = |(metric, (id, what, unit)): (usize, (&str, &str, &'static str))| {
        let samples = grown.iter().map(|(name, numbers)| {
            (name.clone(), numbers.get(metric).copied().into_iter().collect())
        });
        let title = format!("held after {containers} containers and {execs} execs: more {what}");
        Case::new(id, title, unit, OURS, samples.collect())
    };
    Ok(METRICS.into_iter().enumerate().map(case).collect())
}

async fn growth(
    bench: &Bench,
    fixture: &Fixture,
    contender: &Contender,
    runtime: &Runtime,
) -> Result<[f64; 3]> {
    let name = if contender.is_ours() { "ours" } else { "theirs" };
    let pod = Pod::run(fixture, contender, runtime, name).await?;
    let (containers, execs) = bench.effort.work;
    // What is kept for the next time is there after the first times.
    work(bench, fixture, &pod, runtime, ("warm", containers.min(20), execs.min(50))).await?;
    let before = at_rest(pod.shim.pid, SHIM_CALM).await?;
    bench.progress.step(&contender.name);
    work(bench, fixture, &pod, runtime, ("work", containers, execs)).await?;
    let after = at_rest(pod.shim.pid, SHIM_CALM).await?;
    pod.end().await?;
    Ok(more(&before, &after))
}

fn more(before: &Usage, after: &Usage) -> [f64; 3] {
    let grown = |of: fn(&Usage) -> f64| of(after) - of(before);
    [
        grown(|usage| usage.fds.len() as f64),
        grown(|usage| usage.threads as f64),
        grown(|usage| usage.rss as f64),
    ]
}

/// The same of the task manager, with a shim for each container.
pub(super) async fn manager(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let node = Node::start(fixture).await?;
    let manager = Manager::start(fixture, &node.own_surroundings()).await?;
    let spec = Spec::new(&["sleep", "1000000"]);
    let id = node.containerd.id("pod");
    let pod = Made::mounted(fixture, &id, &spec, node::runtime(bench)?)?;
    manager.glue.run(&pod.request()).await?;
    let (containers, execs) = bench.effort.work;
    // Its allocator, one for many threads, comes to what it keeps more slowly than a shim's. What it holds after as much work
    // once more would show anything that grows for ever.
    let warm = ("warm", containers, execs);
    manager_work(bench, &node, &manager, &pod, warm).await?;
    let before = at_rest(manager.pid()?, MANAGER_CALM).await?;
    manager_work(bench, &node, &manager, &pod, ("work", containers, execs)).await?;
    let after = at_rest(manager.pid()?, MANAGER_CALM).await?;
    manager.glue.remove(&pod.id).await?;
    manager.end().await?;
    node.end().await?;
    let metrics = METRICS.iter().zip(more(&before, &after));
    let case = |((part, what, unit), number): (&(&str, &str, &'static str), f64)| {
        let title = format!("held by the manager after {containers} containers and {execs} execs");
        let samples = vec![(MANAGER.to_owned(), vec![number])];
        Case::new(
            format!("manager.{part}"),
            format!("{title}: more {what}"),
            unit,
            MANAGER,
            samples,
        )
    };
    Ok(metrics.map(case).collect())
}

async fn manager_work(
    bench: &Bench,
    node: &Node<'_>,
    manager: &Manager,
    pod: &Made,
    (name, containers, execs): (&str, usize, usize),
) -> Result {
    let next = AtomicUsize::new(0);
    let (glue, runtime) = (&manager.glue, node::runtime(bench)?);
    let lane = async |_| -> Result {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number % 100 == 99 {
                bench.progress.step(&format!("{number} of {}", containers + execs));
            }
            let name = format!("{name}{number}");
            if number < containers {
                let id = node.containerd.id(&name);
                let made = Made::mounted(node.fixture, &id, &Spec::new(&["true"]), runtime)?;
                glue.run(&made.request()).await?;
                glue.tasks.wait(&id, "").await?;
                glue.delete(&id).await?;
            } else if number < containers + execs {
                let (tasks, process) = (&glue.tasks, spec::process(&["true"]));
                tasks.exec(&pod.id, &name, &process, &Stdio::null()).await?;
                tasks.start(&pod.id, &name).await?;
                tasks.wait(&pod.id, &name).await?;
                tasks.delete(&pod.id, &name).await?;
            } else {
                return Ok(());
            }
        }
    };
    together((0..AT_A_TIME).map(lane).collect()).await
}

async fn work(
    bench: &Bench,
    fixture: &Fixture,
    pod: &Pod,
    runtime: &Runtime,
    (name, containers, execs): (&str, usize, usize),
) -> Result {
    let next = AtomicUsize::new(0);
    let lane = async |_| -> Result {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let id = format!("{}-{name}{number}", pod.shim.pid);
            if number % 100 == 99 {
                bench.progress.step(&format!("{number} of {}", containers + execs));
            }
            if number < containers {
                let spec = Spec::new(&["true"]).annotation(GROUP, &pod.bundle.id);
                let bundle = fixture.bundle(&id, &spec)?;
                one(&pod.shim, &bundle, runtime).await?;
                forget(&bundle)?;
            } else if number < containers + execs {
                pod.exec(&id).await?;
            } else {
                return Ok(());
            }
        }
    };
    together((0..AT_A_TIME).map(lane).collect()).await
}

/// What a process holds once that has not changed for a while.
async fn at_rest(pid: u32, calm: Duration) -> Result<Usage> {
    let begin = Instant::now();
    let (mut last, mut since) = (Usage::of(pid)?, begin);
    while since.elapsed() < calm {
        tokio::time::sleep(LOOK).await;
        let now = Usage::of(pid)?;
        if (now.fds.len(), now.threads) != (last.fds.len(), last.threads) {
            since = Instant::now();
        }
        last = now;
        if begin.elapsed() > HANG {
            return Err(Failure::new(format!("it does not come to rest: {last:?}")));
        }
    }
    Ok(last)
}
