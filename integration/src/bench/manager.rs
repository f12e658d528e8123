//! The task manager: what it adds to the calls of a shim, how long it takes to list many tasks, and to find many live
//! shims again.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal::SIGTERM;

use super::burst::together;
use super::figure::{Case, median};
use super::ground::Bench;
use super::moves::Moves;
use super::node::{DAEMON, Daemon, MANAGER, Manager, Node, runtime};
use super::records::{Made, call};
use super::sink::Sink;
use super::start::{forget, launched};
use super::turns::alternate;
use crate::attach::Surroundings;
use crate::bundle::Bundle;
use crate::container::with_runtime;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::grpc::Grpc;
use crate::leak::Usage;
use crate::shim::Shim;
use crate::spec::Spec;
use crate::stdio::Stdio;
use crate::task::TaskClient;

/// The floor: a shim started and called by hand.
const DIRECT: &str = "direct calls";

/// Containers that are made or removed at the same time.
const AT_A_TIME: usize = 16;

/// Create alone: by hand, by the manager, by the manager as a daemon, by containerd's own manager. All use this shim.
pub(super) async fn creates(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let node = Node::start(fixture).await?;
    let manager = Manager::start(fixture, &node.own_surroundings()).await?;
    let daemon = Daemon::start(&node).await?;
    let (stock, through) = (node.client().await?, daemon.client().await?);
    let runtime = runtime(bench)?;
    let names = [DIRECT, MANAGER, DAEMON, &node.stock].map(str::to_owned);
    let namespace = fixture.namespace();
    let _moves = Moves::begin(fixture)?;
    let mut samples = alternate(bench, &names, 2 * bench.effort.calls, async |who, turn| {
        let spec = Spec::new(&["sleep", "1000000"]);
        let name = format!("{who}-{turn}");
        if who == 0 {
            return by_hand(bench, &node, &fixture.bundle(&name, &spec)?).await;
        }
        let id = fixture.id(&name);
        for address in [&node.containerd.address(), daemon.address()] {
            fixture.expect_socket(address, &id);
        }
        let made = Made::mounted(fixture, &id, &spec, runtime)?;
        if who == 1 {
            let begin = Instant::now();
            manager.glue.create(&made.request()).await?;
            let took = begin.elapsed();
            manager.glue.remove(&id).await?;
            return Ok([milliseconds(took)]);
        }
        let client = if who == 2 { &through } else { &stock };
        made.record(client, namespace).await?;
        let begin = Instant::now();
        made.create(client, namespace).await?;
        let took = begin.elapsed();
        made.remove(client, namespace).await?;
        made.strike(client, namespace).await?;
        Ok([milliseconds(took)])
    })
    .await?;
    drop((stock, through));
    daemon.end().await?;
    manager.end().await?;
    node.end().await?;
    let case = Case::new("create", "create", "ms", MANAGER, samples.take(&names, 0));
    let above = case.above(DIRECT, "create.added", "create, above direct calls", MANAGER);
    Ok([case].into_iter().chain(above).collect())
}

/// What a manager without any work of its own would do: run the binary, connect, call. The shim's events go where those of
/// all others go.
async fn by_hand(bench: &Bench, node: &Node<'_>, bundle: &Bundle) -> Result<[f64; 1]> {
    let (fixture, address) = (node.fixture, node.containerd.address());
    let shim = bench.shims.first().map(|ours| ours.launch(fixture, bundle));
    let Some(launch) = shim else { return Ok([0.0]) };
    let launch = launch.daemon(address.clone());
    fixture.expect_socket(&address, &bundle.id);
    let options = with_runtime(&runtime(bench)?.binary)?;
    let begin = Instant::now();
    let started = launched(&launch).await?;
    let (service, namespace) = (started.service(), fixture.namespace());
    let tasks = TaskClient::connect(&started.address, service, namespace).await?;
    tasks.create_with(bundle, &Stdio::null(), Some(options)).await?;
    let took = begin.elapsed();
    let shim = Shim::over(started, tasks).await?;
    shim.retire(&bundle.id).await?;
    shim.gone().await?;
    forget(bundle)?;
    Ok([milliseconds(took)])
}

/// Many live shims: how long until they are found again, and to list their tasks.
pub(super) async fn reload(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let count = bench.effort.managed;
    let mut node = Node::start(fixture).await?;
    // Of what containerd does when it starts, finding shims is a part. Without any, it takes this long.
    let mut empty = Vec::new();
    for _ in 0..bench.effort.reloads {
        node.containerd.end(SIGTERM).await?;
        empty.push(node.start_again().await?.as_secs_f64());
    }
    let empty = median(&empty);
    let all = populate(bench, &node, count).await?;
    let ids: Vec<String> = all.iter().map(|made| made.id.clone()).collect();
    let surroundings = node.surroundings(&ids);
    node.containerd.end(SIGTERM).await?;
    let whole = format!("{}, whole start", node.stock);
    let names = [MANAGER.to_owned(), node.stock.clone()];
    let node = tokio::sync::Mutex::new(node);
    let mut samples = alternate(bench, &names, bench.effort.reloads, async |who, _| {
        if who == 0 {
            return found_by_manager(fixture, &surroundings).await;
        }
        found_by_stock(&mut *node.lock().await, empty).await
    })
    .await?;
    let node = node.into_inner();
    clear(bench, &node, &surroundings, &all).await?;
    node.end().await?;

    let mut found = samples.take(&names, 0);
    found.extend(samples.take(&names, 1).into_iter().skip(1).map(|(_, all)| (whole.clone(), all)));
    let mut asked = samples.take(&names, 2);
    let by_daemon =
        samples.take(&names, 3).into_iter().skip(1).map(|(_, all)| (DAEMON.into(), all));
    asked.splice(1..1, by_daemon);
    let case = |id: &str, what: String, unit, samples| Case::new(id, what, unit, MANAGER, samples);
    let listed = samples.take(&names, 4).into_iter().take(1).collect();
    let held = samples.take(&names, 5);
    Ok(vec![
        case("reload", format!("{count} live shims found again"), "s", found),
        case("list", format!("list of {count} tasks, each shim asked"), "ms", asked),
        case("list.known", format!("list of {count} tasks, none asked"), "ms", listed),
        case("loaded.rss", format!("resident with {count} tasks"), "kB", held),
    ])
}

/// In seconds how long the search took, twice; in milliseconds the list of all with and without asking their shims; and
/// what the process holds in kB.
async fn found_by_manager(fixture: &Fixture, surroundings: &Surroundings) -> Result<[f64; 6]> {
    let manager = Manager::start(fixture, surroundings).await?;
    let begin = Instant::now();
    let list = manager.glue.list().await?;
    let listed = milliseconds(begin.elapsed());
    // One after the other, as containerd does, which asks the manager for each.
    for id in &list {
        manager.glue.tasks.state(id, "").await?;
    }
    let asked = milliseconds(begin.elapsed());
    let held = Usage::of(manager.pid()?)?.rss as f64;
    let ready = manager.ready_in.as_secs_f64();
    manager.end().await?;
    Ok([ready, ready, asked, 0.0, listed, held])
}

/// The same of containerd, which does more at its start: without that, and with it. Of the list, its own and that of the
/// daemon in front of it, which asks all shims at the same time.
async fn found_by_stock(node: &mut Node<'_>, empty: f64) -> Result<[f64; 6]> {
    let ready = node.start_again().await?.as_secs_f64();
    let asked = timed_list(node, &node.client().await?).await?;
    let pid = node.containerd.pid().ok_or_else(|| Failure::new("containerd has ended"))?;
    let held = Usage::of(pid)?.rss as f64;
    let daemon = Daemon::start_over(node).await?;
    let by_daemon = timed_list(node, &daemon.client().await?).await?;
    daemon.end().await?;
    node.containerd.end(SIGTERM).await?;
    Ok([ready - empty, ready, asked, by_daemon, 0.0, held])
}

async fn timed_list(node: &Node<'_>, client: &Grpc) -> Result<f64> {
    let begin = Instant::now();
    call(client, "tasks.v1.Tasks/List", node.fixture.namespace(), &[]).await?;
    Ok(milliseconds(begin.elapsed()))
}

/// Runs as many containers, each with a shim of its own, where containerd would have its.
async fn populate(bench: &Bench, node: &Node<'_>, count: usize) -> Result<Vec<Made>> {
    let (fixture, runtime) = (node.fixture, runtime(bench)?);
    let client = node.client().await?;
    let spec = Spec::new(&["sleep", "1000000"]);
    let mut all = Vec::new();
    for number in 0..count {
        let id = node.containerd.id(&format!("{number}"));
        let made = Made::sharing(fixture, &id, &spec, runtime)?;
        made.record(&client, fixture.namespace()).await?;
        all.push(made);
    }
    let manager = Manager::start(fixture, &node.surroundings(&[])).await?;
    bench.progress.step(&format!("making {count} shims"));
    let run = async |made: &Made| -> Result {
        manager.glue.run(&made.request()).await?;
        Ok(())
    };
    in_lanes(&all, run).await?;
    manager.end().await?;
    Ok(all)
}

/// Removes them again, while containerd does not run: it would take the shims' ends for accidents. Their records go with
/// its directories.
async fn clear(
    bench: &Bench,
    node: &Node<'_>,
    surroundings: &Surroundings,
    all: &[Made],
) -> Result {
    bench.progress.step(&format!("removing {} shims", all.len()));
    let _sink = Sink::at(surroundings.request.ttrpc_address.clone().into())?;
    let manager = Manager::start(node.fixture, surroundings).await?;
    let remove = async |made: &Made| -> Result {
        manager.glue.remove(&made.id).await?;
        Ok(())
    };
    in_lanes(all, remove).await?;
    manager.end().await
}

async fn in_lanes(all: &[Made], work: impl AsyncFn(&Made) -> Result) -> Result {
    let lane = async |lane: usize| -> Result {
        for made in all.iter().skip(lane).step_by(AT_A_TIME) {
            work(made).await?;
        }
        Ok(())
    };
    together((0..AT_A_TIME).map(lane).collect()).await
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
