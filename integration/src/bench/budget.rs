//! What was promised, and whether it is kept. The limits that count are ratios within one run: they hold on any machine.

use serde::{Deserialize, Serialize};

use super::calls::bare_name;
use super::contender::{GO, OURS, PUBLISHED, Runtime};
use super::figure::{Case, Figure};
use super::ground::Bench;
use super::node::{MANAGER, STOCK};
use super::start::TRUE;

/// One promise.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Budget {
    /// What is limited.
    pub name: String,
    /// What was measured.
    pub value: f64,
    /// What it must not exceed.
    pub limit: f64,
    /// Is it kept?
    pub met: bool,
}

impl Budget {
    fn new(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Self { name: name.into(), value, limit, met: value <= limit }
    }
}

/// Everything that was promised and measured. What needs a contender that is not at hand is left out.
#[must_use]
pub fn check(bench: &Bench, cases: &[Case]) -> Vec<Budget> {
    let all = All { cases };
    let newest = bench.shims.iter().rfind(|shim| shim.name.starts_with(GO));
    let newest = newest.map_or("", |shim| shim.name.as_str());
    let idle = |part: &str| format!("idle.{}.{part}", bench.effort.many);
    let mut budgets = vec![
        all.ratio("start, of Go's newest", "start.exit", newest, 0.2),
        all.ratio("start, of spawning /bin/true", "start.exit", TRUE, 1.5),
        all.median("idle shim of many: proportional memory, kB", &idle("pss"), 500.0),
        all.median("idle shim of many: private dirty memory, kB", &idle("dirty"), 350.0),
        all.median("idle shim of many: resident memory, kB", &idle("rss"), 3072.0),
        all.ratio("proportional memory, of Go's newest", &idle("pss"), newest, 0.13),
        all.ratio("proportional memory, of rust-extensions", &idle("pss"), PUBLISHED, 0.35),
        all.most("idle shim: context switches", "idle.switches", 0.0),
        all.most("idle shim: processor time, ms", "idle.cpu", 0.0),
    ];
    for runtime in &bench.runtimes {
        budgets.extend(added(&all, runtime));
    }
    budgets.extend([
        all.inverse("output by a fifo: rate of Go's newest, of ours", "fifo.rate", newest, 1.0),
        all.ratio("output by a fifo: processor time, of Go's newest", "fifo.cpu", newest, 0.3),
        all.most("shim after work: more descriptors", "rest.fds", 0.0),
        all.most("shim after work: more threads", "rest.threads", 0.0),
        all.most("shim after work: more resident memory, kB", "rest.rss", REST),
    ]);
    budgets.extend(of_the_manager(bench, &all));
    budgets.into_iter().flatten().collect()
}

/// Of as many shims as there were, the time that a thousand may take in proportion.
fn of_the_manager(bench: &Bench, all: &All<'_>) -> Vec<Option<Budget>> {
    let count = bench.effort.managed;
    let shims = format!("manager: {count} live shims found again");
    let limit = 1.5 * count as f64 / 1000.0;
    let stock = all.names("reload").find(|name| name.starts_with(STOCK)).unwrap_or_default();
    vec![
        all.median_of(MANAGER, &format!("{shims}, s"), "reload", limit),
        all.ratio(&format!("{shims}, of stock containerd"), "reload", &stock, 0.3),
        all.median_of(MANAGER, "manager: create, ms above direct calls", "create.added", 2.0),
        all.most_of(MANAGER, "manager after work: more descriptors", "manager.rest.fds", 0.0),
        all.most_of(MANAGER, "manager after work: more threads", "manager.rest.threads", 0.0),
        all.most_of(
            MANAGER,
            "manager after work: more resident memory, kB",
            "manager.rest.rss",
            REST,
        ),
    ]
}

/// What an allocator keeps in pages that are not all free, in kB: it does not grow with the work.
const REST: f64 = 128.0;

fn added(all: &All<'_>, runtime: &Runtime) -> [Option<Budget>; 2] {
    let (name, bare) = (runtime.name, bare_name(runtime));
    // runc's own time spreads more than crun's, since it is longer.
    let container = if name == "crun" { 3.0 } else { 5.0 };
    [
        (format!("container, ms above {bare}"), format!("container.{name}.added"), container),
        (format!("exec, ms above {bare}"), format!("exec.{name}.added"), 2.0),
    ]
    .map(|(title, id, limit)| all.median(&title, &id, limit))
}

/// All cases, by id.
struct All<'a> {
    cases: &'a [Case],
}

impl All<'_> {
    fn of(&self, id: &str, who: &str) -> Option<&Figure> {
        self.cases.iter().find(|case| case.id == id)?.of(who)
    }

    /// Who was in a case.
    fn names(&self, id: &str) -> impl Iterator<Item = String> {
        let case = self.cases.iter().find(|case| case.id == id);
        case.into_iter().flat_map(|case| &case.figures).map(|figure| figure.who.clone())
    }

    fn median(&self, name: &str, id: &str, limit: f64) -> Option<Budget> {
        self.median_of(OURS, name, id, limit)
    }

    fn median_of(&self, who: &str, name: &str, id: &str, limit: f64) -> Option<Budget> {
        Some(Budget::new(name, self.of(id, who)?.median, limit))
    }

    fn most(&self, name: &str, id: &str, limit: f64) -> Option<Budget> {
        self.most_of(OURS, name, id, limit)
    }

    fn most_of(&self, who: &str, name: &str, id: &str, limit: f64) -> Option<Budget> {
        let samples = &self.of(id, who)?.samples;
        Some(Budget::new(name, samples.iter().copied().fold(f64::MIN, f64::max), limit))
    }

    fn ratio(&self, name: &str, id: &str, other: &str, limit: f64) -> Option<Budget> {
        Some(Budget::new(name, self.of(id, other)?.ratio?, limit))
    }

    /// Where more is better: how much of ours the other had.
    fn inverse(&self, name: &str, id: &str, other: &str, limit: f64) -> Option<Budget> {
        let ratio = self.of(id, other)?.ratio?;
        Some(Budget::new(name, 1.0 / ratio.max(f64::MIN_POSITIVE), limit))
    }
}
