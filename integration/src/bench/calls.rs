//! One container from create to delete, and one exec, through a shim that is there already; and what that takes above
//! the bare runtime doing the same.

use std::sync::Arc;
use std::time::Instant;

use super::bare::Bare;
use super::contender::{OURS, Runtime};
use super::figure::Case;
use super::ground::Bench;
use super::moves::Moves;
use super::sink::Sink;
use super::start::{forget, started};
use super::turns::alternate;
use crate::bundle::Bundle;
use crate::container::with_runtime;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::shim::Shim;
use crate::spec::{self, Spec};
use crate::stdio::Stdio;

/// How the bare runtime is called in reports.
pub(super) fn bare_name(runtime: &Runtime) -> String {
    format!("bare {}", runtime.name)
}

/// Create, start, wait, delete.
pub(super) async fn containers(
    bench: &Bench,
    fixture: &Fixture,
    runtime: &Runtime,
) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let floor = bare_name(runtime);
    let names = bench.names_over(&floor);
    let _moves = Moves::begin(fixture)?;
    let mut samples = alternate(bench, &names, bench.effort.calls, async |who, turn| {
        let bundle = fixture.bundle(&format!("{who}-{turn}"), &Spec::new(&["true"]))?;
        let took = match who.checked_sub(1).and_then(|index| bench.shims.get(index)) {
            None => {
                let bare = Bare::new(fixture, runtime, &bundle)?;
                tokio::task::spawn_blocking(move || {
                    let begin = Instant::now();
                    bare.run()?;
                    let took = begin.elapsed();
                    bare.end(false).map(|()| took)
                })
                .await??
            }
            Some(contender) => {
                let (shim, _) = started(contender, fixture, &bundle).await?;
                let begin = Instant::now();
                one(&shim, &bundle, runtime).await?;
                let took = begin.elapsed();
                shim.shutdown(&bundle.id).await?;
                shim.gone().await?;
                took
            }
        };
        forget(&bundle)?;
        Ok([took.as_secs_f64() * 1e3])
    })
    .await?;
    let id = format!("container.{}", runtime.name);
    let title = format!("create, start, wait, delete with {}", runtime.name);
    let case = Case::new(&id, &title, "ms", OURS, samples.take(&names, 0));
    Ok(with_what_is_above(case, &floor))
}

/// A container from create to delete.
pub(super) async fn one(shim: &Shim, bundle: &Bundle, runtime: &Runtime) -> Result {
    let options = with_runtime(&runtime.binary)?;
    shim.tasks.create_with(bundle, &Stdio::null(), Some(options)).await?;
    shim.tasks.start(&bundle.id, "").await?;
    shim.tasks.wait(&bundle.id, "").await?;
    shim.tasks.delete(&bundle.id, "").await?;
    Ok(())
}

/// Exec, start, wait, delete, in a running container.
pub(super) async fn execs(
    bench: &Bench,
    fixture: &Fixture,
    runtime: &Runtime,
) -> Result<Vec<Case>> {
    let _sink = Sink::new(fixture)?;
    let floor = bare_name(runtime);
    let names = bench.names_over(&floor);
    let mut pods = Vec::new();
    for (who, contender) in bench.shims.iter().enumerate() {
        pods.push(Pod::run(fixture, contender, runtime, &format!("pod{who}")).await?);
    }
    let bundle = fixture.bundle("bare", &Spec::new(&["sleep", "1000000"]))?;
    let bare = Bare::new(fixture, runtime, &bundle)?;
    let process = bare.process(&["true"])?;
    bare.create()?;
    bare.start()?;
    let bare = Arc::new(bare);
    let _moves = Moves::begin(fixture)?;
    let mut samples = alternate(bench, &names, bench.effort.calls, async |who, turn| {
        let begin = Instant::now();
        match who.checked_sub(1).and_then(|index| pods.get(index)) {
            None => {
                let (bare, process) = (Arc::clone(&bare), process.clone());
                tokio::task::spawn_blocking(move || {
                    let begin = Instant::now();
                    bare.exec(&process).map(|()| [begin.elapsed().as_secs_f64() * 1e3])
                })
                .await?
            }
            Some(pod) => {
                pod.exec(&format!("e{turn}")).await?;
                Ok([begin.elapsed().as_secs_f64() * 1e3])
            }
        }
    })
    .await?;
    Arc::into_inner(bare).ok_or_else(|| Failure::new("an exec is not over"))?.end(true)?;
    for pod in pods {
        pod.end().await?;
    }
    let id = format!("exec.{}", runtime.name);
    let title = format!("exec with {}", runtime.name);
    let case = Case::new(&id, &title, "ms", OURS, samples.take(&names, 0));
    Ok(with_what_is_above(case, &floor))
}

fn with_what_is_above(case: Case, floor: &str) -> Vec<Case> {
    let (id, title) = (format!("{}.added", case.id), format!("{}, above {floor}", case.title));
    let above = case.above(floor, &id, &title, OURS);
    [case].into_iter().chain(above).collect()
}

/// A shim with a container that does nothing.
#[derive(Debug)]
pub(super) struct Pod {
    /// The container's bundle.
    pub(super) bundle: Bundle,
    /// The shim.
    pub(super) shim: Shim,
}

impl Pod {
    /// Starts both.
    pub(super) async fn run(
        fixture: &Fixture,
        contender: &super::contender::Contender,
        runtime: &Runtime,
        name: &str,
    ) -> Result<Self> {
        let spec =
            Spec::new(&["sleep", "1000000"]).annotation(super::start::GROUP, &fixture.id(name));
        let bundle = fixture.bundle(name, &spec)?;
        let (shim, _) = started(contender, fixture, &bundle).await?;
        let options = with_runtime(&runtime.binary)?;
        shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await?;
        shim.tasks.start(&bundle.id, "").await?;
        Ok(Self { bundle, shim })
    }

    /// An exec from its reservation to its delete.
    pub(super) async fn exec(&self, name: &str) -> Result {
        let (tasks, id) = (&self.shim.tasks, self.bundle.id.as_str());
        tasks.exec(id, name, &spec::process(&["true"]), &Stdio::null()).await?;
        tasks.start(id, name).await?;
        tasks.wait(id, name).await?;
        tasks.delete(id, name).await?;
        Ok(())
    }

    /// Ends both.
    pub(super) async fn end(self) -> Result {
        self.shim.retire(&self.bundle.id).await?;
        self.shim.gone().await
    }
}
