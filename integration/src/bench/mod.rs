//! What this shim costs, beside what else could be run in its place: Go's shims of every containerd at hand, and the bare
//! OCI runtimes and `/bin/true` as the floor.
//!
//! All do the same work on the same machine in the same minutes, in turns, so that whatever disturbs the machine disturbs
//! all of them. What is compared is therefore the ratio within one turn, and of these the median.
//!
//! * [`effort`]: how much is done. [`contender`]: who is compared. [`figure`]: numbers and what is said of them.
//! * [`ground`]: what a case stands on; interruption and progress. `turns`: the order in which contenders act.
//! * `start`, `memory`, `calls`, `bare`, `burst`, `stream`, `rate`, `latency`, `rest`: the cases.
//! * [`budget`]: what was promised, and whether it is kept. [`machine`]: where it was measured.
//! * [`report`], [`table`], [`picture`]: the result for programs, for a terminal, for a page.

mod bare;
pub mod budget;
mod burst;
mod calls;
pub mod contender;
pub mod effort;
pub mod figure;
pub mod ground;
mod latency;
pub mod machine;
mod memory;
pub mod picture;
mod pidfd;
mod rate;
pub mod report;
mod rest;
mod sink;
mod start;
mod stream;
pub mod table;
mod turns;
mod usage;

use crate::failure::Result;
use effort::Effort;
use figure::Case;
use ground::{Bench, Stop};
use report::Report;

/// Measures everything, or those cases whose names contain one of the words.
///
/// # Errors
/// When something does not work, or when it is interrupted; everything that was started has ended then.
pub fn run(effort: Effort, chosen: Vec<String>, stop: Stop) -> Result<Report> {
    let bench = Bench::new(effort, chosen, stop)?;
    let mut cases: Vec<Case> = Vec::new();
    let bench = &bench;
    cases.extend(bench.run("start", async |fixture| start::alone(bench, fixture).await)?);
    cases.extend(bench.run("join", async |fixture| start::joining(bench, fixture).await)?);
    for &shims in effort.shims {
        let name = format!("idle shims, {shims}");
        cases.extend(bench.run(&name, async |fixture| memory::idle(bench, fixture, shims).await)?);
    }
    cases.extend(bench.run("a pod", async |fixture| memory::pod(bench, fixture).await)?);
    for runtime in &bench.runtimes {
        let name = format!("containers with {}", runtime.name);
        let task = async |fixture: &_| calls::containers(bench, fixture, runtime).await;
        cases.extend(bench.run(&name, task)?);
        let name = format!("execs with {}", runtime.name);
        let task = async |fixture: &_| calls::execs(bench, fixture, runtime).await;
        cases.extend(bench.run(&name, task)?);
        let name = format!("containers at a time with {}", runtime.name);
        let task = async |fixture: &_| burst::measure(bench, fixture, runtime).await;
        cases.extend(bench.run(&name, task)?);
    }
    for kind in stream::KINDS {
        cases.extend(
            bench.run(kind.name, async |fixture| stream::measure(bench, fixture, kind).await)?,
        );
    }
    cases.extend(bench.run("events", async |fixture| rate::measure(bench, fixture).await)?);
    cases.extend(bench.run("latency", async |fixture| latency::measure(bench, fixture).await)?);
    cases
        .extend(bench.run("rest after work", async |fixture| rest::measure(bench, fixture).await)?);
    // The cases of the task manager belong here: create over direct calls, a list of 1000, reload of 1000 live shims.
    Ok(Report::new(bench, cases))
}
