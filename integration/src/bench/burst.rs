//! Many containers at once, each with a shim of its own, as when a node is filled: until the last one is deleted.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::bare::Bare;
use super::calls::{bare_name, one};
use super::contender::{Contender, OURS, Runtime};
use super::figure::Case;
use super::ground::Bench;
use super::sink::Sink;
use super::start::{forget, started};
use super::turns::alternate;
use crate::bundle::Bundle;
use crate::failure::Result;
use crate::fixture::Fixture;
use crate::spec::Spec;

/// How many at a time.
const AT_A_TIME: usize = 16;

pub(super) async fn measure(
    bench: &Bench,
    fixture: &Fixture,
    runtime: &Runtime,
) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let names = bench.names_over(&bare_name(runtime));
    let mut samples = alternate(bench, &names, bench.effort.bursts, async |who, turn| {
        let bundle = |number: usize| {
            fixture.bundle(&format!("{who}-{turn}-{number}"), &Spec::new(&["true"]))
        };
        let bundles: Vec<Bundle> = (0..AT_A_TIME).map(bundle).collect::<Result<_>>()?;
        let took = match who.checked_sub(1).and_then(|index| bench.shims.get(index)) {
            None => alone(fixture, runtime, &bundles).await?,
            Some(contender) => through_shims(fixture, contender, runtime, &bundles).await?,
        };
        for bundle in &bundles {
            forget(bundle)?;
        }
        Ok([took.as_secs_f64() * 1e3])
    })
    .await?;
    let id = format!("burst.{}", runtime.name);
    let title = format!("{AT_A_TIME} containers at a time with {}", runtime.name);
    Ok(vec![Case::new(id, title, "ms", OURS, samples.take(&names, 0))])
}

async fn alone(fixture: &Fixture, runtime: &Runtime, bundles: &[Bundle]) -> Result<Duration> {
    let bares: Vec<Bare> =
        bundles.iter().map(|bundle| Bare::new(fixture, runtime, bundle)).collect::<Result<_>>()?;
    let begin = Instant::now();
    let mut all = JoinSet::new();
    for bare in bares {
        all.spawn_blocking(move || bare.run().map(|()| bare));
    }
    let mut ended = Vec::new();
    while let Some(bare) = all.join_next().await {
        ended.push(bare??);
    }
    let took = begin.elapsed();
    for bare in ended {
        bare.end(false)?;
    }
    Ok(took)
}

async fn through_shims(
    fixture: &Fixture,
    contender: &Contender,
    runtime: &Runtime,
    bundles: &[Bundle],
) -> Result<Duration> {
    let mut shims = Vec::new();
    for bundle in bundles {
        shims.push(started(contender, fixture, bundle).await?.0);
    }
    let begin = Instant::now();
    let each = shims.iter().zip(bundles).map(|(shim, bundle)| one(shim, bundle, runtime));
    together(each.collect()).await?;
    let took = begin.elapsed();
    for (shim, bundle) in shims.iter().zip(bundles) {
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
    }
    Ok(took)
}

/// Lets all of them go on at once, on this task: what they wait for is others' work.
pub(super) async fn together<F: Future<Output = Result>>(work: Vec<F>) -> Result {
    let mut waiting: Vec<_> = work.into_iter().map(|one| Some(Box::pin(one))).collect();
    std::future::poll_fn(|context| {
        let mut is_pending = false;
        for slot in &mut waiting {
            let Some(one) = slot else { continue };
            match one.as_mut().poll(context) {
                std::task::Poll::Pending => is_pending = true,
                std::task::Poll::Ready(Ok(())) => *slot = None,
                std::task::Poll::Ready(Err(failure)) => return Err(failure).into(),
            }
        }
        if is_pending { std::task::Poll::Pending } else { Ok(()).into() }
    })
    .await
}
