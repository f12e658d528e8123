//! `start`: from spawning the binary to its exit, as the manager waits for it, and to the first answer of the shim.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::contender::{Contender, OURS};
use super::figure::Case;
use super::ground::Bench;
use super::sink::Sink;
use super::turns::alternate;
use crate::bundle::Bundle;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::shim::{Launch, Shim, Started};
use crate::spec::Spec;

/// The floor: what it takes to spawn anything at all, with the same arguments, environment and pipes.
pub(super) const TRUE: &str = "/bin/true";

/// The annotation that makes containers share a shim.
pub(super) const GROUP: &str = "io.containerd.runc.v2.group";

/// A shim for every container.
pub(super) async fn alone(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let names = bench.names_over(TRUE);
    let mut samples = alternate(bench, &names, bench.effort.starts, async |who, turn| {
        let bundle = fixture.bundle(&format!("{who}-{turn}"), &Spec::new(&["true"]))?;
        let Some(shim) = who.checked_sub(1).and_then(|index| bench.shims.get(index)) else {
            let newest = bench.shims.first().map(|shim| shim.launch(fixture, &bundle));
            let launch = newest.unwrap_or_else(|| Launch::new(fixture, &bundle));
            let launch = launch.binary(PathBuf::from(TRUE));
            let ran = timed(&launch).await?;
            forget(&bundle)?;
            return Ok([ran.took.as_secs_f64() * 1e3, 0.0]);
        };
        let begin = Instant::now();
        let (shim, exit) = started(shim, fixture, &bundle).await?;
        let answer = begin.elapsed();
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
        forget(&bundle)?;
        Ok([exit.as_secs_f64() * 1e3, answer.as_secs_f64() * 1e3])
    })
    .await?;
    let mut to_answer = samples.take(&names, 1);
    to_answer.retain(|(who, _)| who != TRUE);
    Ok(vec![
        Case::new("start.exit", "start, to its exit", "ms", OURS, samples.take(&names, 0)),
        Case::new("start.answer", "start, to the first answer", "ms", OURS, to_answer),
    ])
}

/// A container that joins the shim of its pod.
pub(super) async fn joining(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let names = bench.names();
    let mut pods = Vec::new();
    for (who, shim) in bench.shims.iter().enumerate() {
        let name = format!("pod{who}");
        let spec = Spec::new(&["true"]).annotation(GROUP, &fixture.id(&name));
        let bundle = fixture.bundle(&name, &spec)?;
        let (running, _) = started(shim, fixture, &bundle).await?;
        pods.push((shim, bundle, spec, running));
    }
    let mut samples = alternate(bench, &names, bench.effort.starts, async |who, turn| {
        let Some((shim, _, spec, running)) = pods.get(who) else { return Ok([0.0]) };
        let bundle = fixture.bundle(&format!("{who}-{turn}"), spec)?;
        let ran = timed(&shim.launch(fixture, &bundle)).await?;
        if Started::read(&ran.stdout)?.socket() != running.started.socket() {
            return Err(Failure::new("a container of the pod has a shim of its own"));
        }
        forget(&bundle)?;
        Ok([ran.took.as_secs_f64() * 1e3])
    })
    .await?;
    for (_, bundle, _, running) in pods {
        running.shutdown(&bundle.id).await?;
        running.gone().await?;
    }
    let title = "start in a pod that has a shim";
    Ok(vec![Case::new("join.exit", title, "ms", OURS, samples.take(&names, 0))])
}

/// Starts a shim and connects to it; how long its `start` took.
pub(super) async fn started(
    contender: &Contender,
    fixture: &Fixture,
    bundle: &Bundle,
) -> Result<(Shim, Duration)> {
    let ran = timed(&contender.launch(fixture, bundle)).await?;
    let shim = Shim::connect(fixture, Started::read(&ran.stdout)?).await?;
    Ok((shim, ran.took))
}

/// The manager removes the bundle.
pub(super) fn forget(bundle: &Bundle) -> Result {
    Ok(fs::remove_dir_all(&bundle.dir)?)
}

/// Runs `start`; what it answers.
pub(super) async fn launched(launch: &Launch<'_>) -> Result<Started> {
    Started::read(&timed(launch).await?.stdout)
}

struct Ran {
    stdout: Vec<u8>,
    took: Duration,
}

/// Runs `start` to the end of its output and to its exit. On a thread of its own, so that no event loop adds its share.
async fn timed(launch: &Launch<'_>) -> Result<Ran> {
    let mut command = launch.command("start")?.into_std();
    let told = launch.stdin();
    // Containerds that have nothing to tell give /dev/null.
    let stdin = if told.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    tokio::task::spawn_blocking(move || run(command, &told)).await?
}

fn run(mut command: Command, told: &[u8]) -> Result<Ran> {
    let begin = Instant::now();
    let mut child = command.spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        // Some end without having read it.
        let _ = pipe.write_all(told);
    }
    let mut stdout = Vec::new();
    if let Some(pipe) = &mut child.stdout {
        pipe.read_to_end(&mut stdout)?;
    }
    let status = child.wait()?;
    let took = begin.elapsed();
    if status.success() {
        return Ok(Ran { stdout, took });
    }
    let mut said = String::new();
    if let Some(pipe) = &mut child.stderr {
        pipe.read_to_string(&mut said)?;
    }
    Err(Failure::new(format!("start: {status}: {said}")))
}
