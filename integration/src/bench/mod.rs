//! What this shim and this task manager cost, beside what else could be run in their place: Go's shims of every containerd
//! at hand, containerd's own manager; and bare OCI runtimes, `/bin/true` and direct calls as the floor.
//!
//! All do the same work on the same machine in the same minutes, in turns, so that whatever disturbs the machine disturbs
//! all of them. What is compared is therefore the ratio within one turn, and of these the median.
//!
//! * [`effort`]: how much is done. [`contender`]: who is compared. [`figure`]: numbers and what is said of them.
//! * [`ground`]: what a case stands on; interruption and progress.
//! * `turns`, `moves`: the order in which contenders act, and how the kernel is kept from waiting now and then.
//! * `start`, `memory`, `calls`, `bare`, `burst`, `stream`, `rate`, `latency`, `rest`: the cases of the shim.
//! * `node`, `records`: containerd with the task manager beside it. `manager`, `passing`: the cases of the latter.
//! * [`budget`]: what was promised, and whether it is kept. [`machine`]: where it was measured.
//! * [`report`], [`table`], [`picture`], [`markdown`]: the result for programs, for a terminal, for pages.

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
mod manager;
pub mod markdown;
mod memory;
mod moves;
mod node;
mod passing;
pub mod picture;
mod pidfd;
mod rate;
mod records;
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
    if node::is_there() {
        cases.extend(bench.run("create", async |fixture| manager::creates(bench, fixture).await)?);
        let name = format!("reload of {} live shims", effort.managed);
        cases.extend(bench.run(&name, async |fixture| manager::reload(bench, fixture).await)?);
        let task = async |fixture: &_| rest::manager(bench, fixture).await;
        cases.extend(bench.run("manager at rest after work", task)?);
        cases.extend(
            bench.run("pass-through", async |fixture| passing::measure(bench, fixture).await)?,
        );
    }
    Ok(Report::new(bench, cases))
}
