//! How many events a shim gets to containerd in a second. Reserving an exec causes one event and nothing else, no process
//! and no call of a runtime: what is measured is the way from a request to its event.

use std::time::Instant;

use super::burst::together;
use super::calls::Pod;
use super::contender::OURS;
use super::figure::Case;
use super::ground::Bench;
use super::sink::Sink;
use super::turns::alternate;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::spec;
use crate::stdio::Stdio;

/// Requests under way at the same time.
const AT_A_TIME: usize = 16;

pub(super) async fn measure(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let sink = Sink::new(fixture)?;
    let runtime = bench.quickest().ok_or_else(|| Failure::new("no OCI runtime"))?;
    let mut pods = Vec::new();
    for (who, contender) in bench.shims.iter().enumerate() {
        pods.push(Pod::run(fixture, contender, runtime, &format!("pod{who}")).await?);
    }
    let each = bench.effort.events / AT_A_TIME + 1;
    let names = bench.names();
    let mut samples = alternate(bench, &names, bench.effort.rates, async |who, turn| {
        let Some(pod) = pods.get(who) else { return Ok([0.0]) };
        let before = sink.count();
        let begin = Instant::now();
        let lane = |lane: usize| reserve(pod, format!("r{turn}-{lane}"), each);
        together((0..AT_A_TIME).map(lane).collect()).await?;
        let all = before + each * AT_A_TIME;
        sink.reached(all).await?;
        let rate = (each * AT_A_TIME) as f64 / begin.elapsed().as_secs_f64();
        let lane = |lane: usize| discard(pod, format!("r{turn}-{lane}"), each);
        together((0..AT_A_TIME).map(lane).collect()).await?;
        Ok([rate])
    })
    .await?;
    for pod in pods {
        pod.end().await?;
    }
    let numbers = samples.take(&names, 0);
    Ok(vec![Case::new("events.rate", "events", "1/s", OURS, numbers).more_is_better()])
}

async fn reserve(pod: &Pod, name: String, count: usize) -> Result {
    for number in 0..count {
        let (id, exec) = (pod.bundle.id.as_str(), format!("{name}-{number}"));
        pod.shim.tasks.exec(id, &exec, &spec::process(&["true"]), &Stdio::null()).await?;
    }
    Ok(())
}

async fn discard(pod: &Pod, name: String, count: usize) -> Result {
    for number in 0..count {
        pod.shim.tasks.delete(&pod.bundle.id, &format!("{name}-{number}")).await?;
    }
    Ok(())
}
