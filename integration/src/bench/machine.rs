//! Where it was measured.

use std::{fmt, fs};

use serde::{Deserialize, Serialize};

/// The machine, as far as it matters for the numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// What the kernel says of the processor.
    pub processor: String,
    /// How many of them.
    pub processors: usize,
    /// Memory in MiB.
    pub memory: u64,
    /// The kernel.
    pub kernel: String,
    /// The versions of cgroups that are mounted.
    pub cgroups: String,
    /// How many processes wanted to run in the last minute, before anything was measured: with more than about one,
    /// absolute numbers say little.
    pub load: f64,
}

/// All of it but the load, in a line.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, processors, memory, kernel, cgroups, load: _ } = self;
        write!(f, "{processors} x {processor}, {memory} MiB, Linux {kernel}, cgroup {cgroups}")
    }
}

impl Machine {
    /// This machine, now.
    #[must_use]
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let value = |table: &str, name: &str| {
            let line = table.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kb = memory.split(' ').next().and_then(|kb| kb.parse::<u64>().ok());
        let load = read("/proc/loadavg");
        let mounts = read("/proc/self/mountinfo");
        let cgroups = match (mounts.contains(" - cgroup "), mounts.contains(" - cgroup2 ")) {
            (true, true) => "v1 with v2 beside it",
            (true, false) => "v1",
            (false, true) => "v2",
            (false, false) => "none",
        };
        Self {
            processor: value(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            memory: kb.unwrap_or_default() / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cgroups: cgroups.to_owned(),
            load: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default(),
        }
    }
}
