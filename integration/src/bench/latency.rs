//! How long State and Connect take while execs come and go: what a node agent that polls has to wait.

use std::time::Instant;

use super::calls::Pod;
use super::contender::OURS;
use super::figure::{Case, quantile};
use super::ground::Bench;
use super::sink::Sink;
use super::turns::alternate;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::task::TaskClient;

/// Execs under way at the same time: as many as there are processors on a small node.
const EXECS: usize = 2;

/// The share of calls that are not slower than what is reported as the slow ones.
const SLOW: f64 = 0.99;

pub(super) async fn measure(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let runtime = bench.quickest().ok_or_else(|| Failure::new("no OCI runtime"))?;
    let mut pods = Vec::new();
    for (who, contender) in bench.shims.iter().enumerate() {
        pods.push(Pod::run(fixture, contender, runtime, &format!("pod{who}")).await?);
    }
    let names = bench.names();
    let mut samples = alternate(bench, &names, bench.effort.rates, async |who, turn| {
        let Some(pod) = pods.get(who) else { return Ok([0.0; 4]) };
        let calls = async {
            // A connection of its own, as an agent has it.
            let started = &pod.shim.started;
            let service = started.service();
            let client =
                TaskClient::connect(&started.address, service, fixture.namespace()).await?;
            poll(&client, &pod.bundle.id, bench.effort.calls_under_load).await
        };
        tokio::select! {
            latencies = calls => latencies,
            failed = load(pod, turn) => failed.and(Err(Failure::new("the load ended"))),
        }
    })
    .await?;
    for pod in pods {
        pod.end().await?;
    }
    let mut cases = Vec::new();
    for (metric, (id, title)) in [
        ("state.middle", "State under load"),
        ("state.slow", "State under load, 99 of 100"),
        ("connect.middle", "Connect under load"),
        ("connect.slow", "Connect under load, 99 of 100"),
    ]
    .into_iter()
    .enumerate()
    {
        cases.push(Case::new(id, title, "ms", OURS, samples.take(&names, metric)));
    }
    Ok(cases)
}

async fn poll(client: &TaskClient, id: &str, count: usize) -> Result<[f64; 4]> {
    let (mut states, mut connects) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let begin = Instant::now();
        client.state(id, "").await?;
        states.push(begin.elapsed().as_secs_f64() * 1e3);
        let begin = Instant::now();
        client.connect_task(id).await?;
        connects.push(begin.elapsed().as_secs_f64() * 1e3);
        tokio::task::yield_now().await;
    }
    Ok([
        quantile(&states, 0.5),
        quantile(&states, SLOW),
        quantile(&connects, 0.5),
        quantile(&connects, SLOW),
    ])
}

/// Execs one after the other in a few lanes, until nobody waits for it any more. What is under way then ends with the pod.
async fn load(pod: &Pod, turn: usize) -> Result {
    let lane = async |lane: usize| -> Result {
        for number in 0.. {
            pod.exec(&format!("l{turn}-{lane}-{number}")).await?;
        }
        Ok(())
    };
    super::burst::together((0..EXECS).map(lane).collect()).await
}
