//! Output of processes on its way through the shim: how fast, and for how much of its processor time.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::fcntl::{SpliceFFlags, splice};
use tokio::task::JoinSet;

use super::burst::together;
use super::calls::Pod;
use super::contender::OURS;
use super::figure::Case;
use super::ground::Bench;
use super::sink::Sink;
use super::turns::alternate;
use super::usage::processor_time;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::spec;
use crate::stdio::Stdio;

/// A kind of stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// Its name in reports.
    pub(super) name: &'static str,
    id: &'static str,
    /// How many processes write at the same time.
    streams: u64,
    terminal: bool,
}

pub(super) const KINDS: [Kind; 3] = [
    Kind { name: "output by one fifo", id: "fifo", streams: 1, terminal: false },
    Kind { name: "output by 32 fifos", id: "fifos", streams: 32, terminal: false },
    Kind { name: "output by a terminal", id: "tty", streams: 1, terminal: true },
];

/// What is written at once. Streams are cut to whole blocks.
const BLOCK: u64 = 64 << 10;

/// Terminals pass a fraction of what pipes do.
const TERMINAL_SHARE: u64 = 16;

const MIB: f64 = (1 << 20) as f64;

pub(super) async fn measure(bench: &Bench, fixture: &Fixture, kind: Kind) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let runtime = bench.quickest().ok_or_else(|| Failure::new("no OCI runtime"))?;
    let mut pods = Vec::new();
    for (who, contender) in bench.shims.iter().enumerate() {
        pods.push(Pod::run(fixture, contender, runtime, &format!("pod{who}")).await?);
    }
    let all = bench.effort.bytes / if kind.terminal { TERMINAL_SHARE } else { 1 };
    let blocks = (all / kind.streams / BLOCK).max(1);
    let total = (blocks * kind.streams * BLOCK) as f64 / MIB;
    let names = bench.names();
    let mut samples = alternate(bench, &names, bench.effort.streams, async |who, turn| {
        let Some(pod) = pods.get(who) else { return Ok([0.0; 2]) };
        let (seconds, nanoseconds) = transfer(fixture, pod, kind, blocks, turn).await?;
        Ok([total / seconds, nanoseconds / 1e6 / (total / 1024.0)])
    })
    .await?;
    for pod in pods {
        pod.end().await?;
    }
    let (id, name) = (kind.id, kind.name);
    Ok(vec![
        Case::new(format!("{id}.rate"), name, "MiB/s", OURS, samples.take(&names, 0))
            .more_is_better(),
        Case::new(
            format!("{id}.cpu"),
            format!("{name}: processor time of the shim for 1 GiB"),
            "ms",
            OURS,
            samples.take(&names, 1),
        ),
    ])
}

/// Starts the writers, which wait for a file; makes it; gives seconds until the last stream has ended, and nanoseconds
/// that the shim spent.
async fn transfer(
    fixture: &Fixture,
    pod: &Pod,
    kind: Kind,
    blocks: u64,
    turn: usize,
) -> Result<(f64, f64)> {
    let (tasks, id) = (&pod.shim.tasks, pod.bundle.id.as_str());
    let gate = format!("go-{}-{turn}", pod.shim.pid);
    let script = format!(
        "until [ -e /{gate} ]; do usleep 2000; done; exec dd if=/dev/zero bs={BLOCK} count={blocks} 2>/dev/null"
    );
    let mut process = spec::process(&["sh", "-c", &script]);
    process["terminal"] = kind.terminal.into();
    let writers: Vec<String> =
        (0..kind.streams).map(|number| format!("w{turn}-{number}")).collect();
    let mut readers = JoinSet::new();
    let mut fifos = Vec::new();
    for name in &writers {
        let fifo = format!("{}-{name}", pod.shim.pid);
        let stdio = streams(&fixture.file("fifo"), &fifo, kind)?;
        for path in [&stdio.stdout, &stdio.stderr].into_iter().filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            readers.spawn_blocking(move || swallow(&path));
        }
        tasks.exec(id, name, &process, &stdio).await.context("exec")?;
        tasks.start(id, name).await.context("start")?;
        fifos.push(stdio);
    }
    let gate = fixture.rootfs()?.join(gate);
    let before = processor_time(pod.shim.pid)?;
    let begin = Instant::now();
    fs::write(&gate, "")?;
    let mut seen = 0;
    while let Some(bytes) = readers.join_next().await {
        seen += bytes??;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let spent = processor_time(pod.shim.pid)? - before;
    let wanted = blocks * kind.streams * BLOCK;
    if seen != wanted {
        return Err(Failure::new(format!("{seen} bytes of {wanted} came")));
    }
    let ends = writers.iter().map(|name| async move {
        tasks.wait(id, name).await?;
        tasks.delete(id, name).await?;
        Ok(())
    });
    together(ends.collect()).await?;
    for stdio in fifos {
        for path in [stdio.stdout, stdio.stderr].iter().filter(|path| !path.is_empty()) {
            fs::remove_file(path)?;
        }
    }
    fs::remove_file(gate)?;
    Ok((seconds, spent))
}

/// Fifos for output alone. Both, or a terminal: Go's shims fail when there is only one.
fn streams(dir: &Path, name: &str, kind: Kind) -> Result<Stdio> {
    let make = if kind.terminal { Stdio::terminal } else { Stdio::fifos };
    let stdio = make(dir, name)?;
    fs::remove_file(&stdio.stdin)?;
    Ok(stdio.without_stdin())
}

/// Reads a fifo to its end at the least cost there is: what it takes comes on top of what the shim does.
fn swallow(path: &Path) -> Result<u64> {
    const MOST: usize = 1 << 20;
    let from = OwnedFd::from(File::open(path)?);
    let to = OwnedFd::from(File::options().write(true).open("/dev/null")?);
    let mut seen = 0;
    loop {
        match splice(&from, None, &to, None, MOST, SpliceFFlags::empty())? {
            0 => return Ok(seen),
            count => seen += count as u64,
        }
    }
}
