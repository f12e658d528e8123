//! What operators watch, in Prometheus' text format.
//!
//! A dozen numbers need no registry: each is a field here, and [`Metrics::text`] writes them.

mod endpoint;
mod histogram;

pub(crate) use endpoint::Endpoint;

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use runtime_v2::{LoadReport, TaskManager};
use tonic::Code;

use histogram::Histogram;

/// Counters of one manager.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Plain locks: held for one entry.
    calls: Mutex<BTreeMap<(&'static str, i32), u64>>,
    durations: Mutex<BTreeMap<&'static str, Histogram>>,
    observed: Mutex<BTreeMap<String, u64>>,
    published: Mutex<BTreeMap<String, u64>>,
    lost: AtomicU64,
    downgraded: AtomicU64,
    loaded: AtomicU64,
    leaked: AtomicU64,
    dead: AtomicU64,
    kept: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Metrics {
    /// A call of the task service has been answered.
    pub(crate) fn called(&self, method: &'static str, code: Code, took: Duration) {
        *lock(&self.calls).entry((method, i32::from(code))).or_default() += 1;
        lock(&self.durations).entry(method).or_default().observe(took);
    }

    /// An event of a shim has been seen.
    pub(crate) fn observed(&self, topic: &str) {
        count(&self.observed, topic);
    }

    /// An event of this manager's own has been published.
    pub(crate) fn published(&self, topic: &str) {
        count(&self.published, topic);
    }

    /// An event of this manager's own was not taken by anybody.
    pub(crate) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// A shim turned out to speak an older API than it had announced.
    pub(crate) fn downgraded(&self) {
        self.downgraded.fetch_add(1, Ordering::Relaxed);
    }

    /// Shims of an earlier manager were found again.
    pub(crate) fn loaded(&self, report: &LoadReport, manager: &TaskManager) {
        let add = |counter: &AtomicU64, keys: usize| {
            counter.fetch_add(keys as u64, Ordering::Relaxed);
        };
        add(&self.loaded, report.loaded.len());
        add(&self.leaked, report.leaked.len());
        add(&self.dead, report.dead.len());
        add(&self.kept, report.kept.len());
        let tasks = manager.list(None);
        let downgraded = tasks.iter().filter(|task| task.shim().is_downgraded());
        downgraded.for_each(|_| self.downgraded());
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self, manager: &TaskManager) -> String {
        let mut page = Page::default();
        page.family("build_info", "gauge", "The version that runs.");
        page.value("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        present(&mut page, manager);
        page.family("calls_total", "counter", "Answered calls of the task service.");
        for ((method, code), count) in lock(&self.calls).iter() {
            let code = format!("{:?}", Code::from_i32(*code));
            page.value("calls_total", &[("method", method), ("code", &code)], *count);
        }
        page.family("call_duration_seconds", "histogram", "How long they took.");
        for (method, histogram) in lock(&self.durations).iter() {
            histogram.write(&mut page, "call_duration_seconds", ("method", method));
        }
        let by_topic = [
            ("events_seen_total", "Events of shims that containerd told of.", &self.observed),
            ("events_published_total", "Events published for dead shims.", &self.published),
        ];
        for (name, help, counts) in by_topic {
            page.family(name, "counter", help);
            for (topic, count) in lock(counts).iter() {
                page.value(name, &[("topic", topic)], *count);
            }
        }
        page.family("events_lost_total", "counter", "Events that containerd did not take.");
        page.value("events_lost_total", &[], self.lost.load(Ordering::Relaxed));
        page.family("downgrades_total", "counter", "Shims older than they had announced.");
        page.value("downgrades_total", &[], self.downgraded.load(Ordering::Relaxed));
        page.family("loaded_total", "counter", "Bundles found at start, by what became of them.");
        for (outcome, counter) in [
            ("live", &self.loaded),
            ("leak_reaped", &self.leaked),
            ("dead_cleaned", &self.dead),
            ("kept", &self.kept),
        ] {
            page.value("loaded_total", &[("outcome", outcome)], counter.load(Ordering::Relaxed));
        }
        page.text
    }
}

fn count(counts: &Mutex<BTreeMap<String, u64>>, topic: &str) {
    let mut counts = lock(counts);
    match counts.get_mut(topic) {
        Some(count) => *count += 1,
        None => drop(counts.insert(topic.to_owned(), 1)),
    }
}

/// What there is at this moment.
fn present(page: &mut Page, manager: &TaskManager) {
    let tasks = manager.list(None);
    page.family("tasks", "gauge", "Tasks, by namespace.");
    let mut namespaces: BTreeMap<&str, u64> = BTreeMap::new();
    for task in &tasks {
        *namespaces.entry(task.key().namespace.as_str()).or_default() += 1;
    }
    for (namespace, count) in namespaces {
        page.value("tasks", &[("namespace", namespace)], count);
    }
    page.family("shims", "gauge", "Shim processes, by the task API they speak.");
    let shims: HashSet<(String, i32)> = tasks
        .iter()
        .map(|task| (task.shim().address().to_owned(), task.shim().version()))
        .collect();
    let mut versions: BTreeMap<i32, u64> = BTreeMap::new();
    for (_, version) in shims {
        *versions.entry(version).or_default() += 1;
    }
    for (version, count) in versions {
        page.value("shims", &[("api", &version.to_string())], count);
    }
}

/// A page in the making.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
}

/// What all names begin with.
const PREFIX: &str = "containerd_task_manager_";

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.text, "{PREFIX}{name}");
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_line_per_value_and_escapes_labels() {
        let mut page = Page::default();
        page.family("x_total", "counter", "Some.");
        page.value("x_total", &[], 3);
        page.value("x_total", &[("a", "q\"\\\n"), ("b", "c")], 4);
        let lines: Vec<_> = page.text.lines().collect();
        assert_eq!(lines[1], "# TYPE containerd_task_manager_x_total counter");
        assert_eq!(lines[2], "containerd_task_manager_x_total 3");
        assert_eq!(lines[3], r#"containerd_task_manager_x_total{a="q\"\\\n",b="c"} 4"#);
    }
}
