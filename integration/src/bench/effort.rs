//! How much is done: enough for a look, for a look that counts, or only to see that it runs.

use std::time::Duration;

/// Numbers of everything.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Its name on the command line.
    pub name: &'static str,
    /// Turns of `start`, and of joining a group.
    pub starts: usize,
    /// How many idle shims are measured, each with one container.
    pub shims: &'static [usize],
    /// The one of these at which what shims share counts, and in which they are watched.
    pub many: usize,
    /// Containers that are added to a pod.
    pub added: usize,
    /// How long idle shims are watched.
    pub watch: Duration,
    /// Turns of one container, and of one exec.
    pub calls: usize,
    /// Turns of containers at a time.
    pub bursts: usize,
    /// Turns of each kind of stream.
    pub streams: usize,
    /// Bytes through fifos in one turn; terminals are slower and get less.
    pub bytes: u64,
    /// Events in one turn.
    pub events: usize,
    /// Calls whose latency is taken in one turn.
    pub calls_under_load: usize,
    /// Turns of the two before.
    pub rates: usize,
    /// Containers, and execs, after which a shim, and the manager, have to come to rest.
    pub work: (usize, usize),
    /// Live shims that the manager finds again.
    pub managed: usize,
    /// Turns of that.
    pub reloads: usize,
    /// Calls that pass through the daemon in one turn.
    pub passing: usize,
    /// MiB that pass through it in one turn.
    pub streamed: usize,
}

/// Within five minutes.
pub const QUICK: Effort = Effort {
    name: "quick",
    starts: 40,
    shims: &[1, 50],
    many: 50,
    added: 10,
    watch: Duration::from_secs(10),
    calls: 20,
    bursts: 2,
    streams: 5,
    bytes: 256 << 20,
    events: 1000,
    calls_under_load: 500,
    rates: 3,
    work: (20, 100),
    managed: 200,
    reloads: 5,
    passing: 500,
    streamed: 64,
};

/// What the numbers in the documentation are made with.
pub const FULL: Effort = Effort {
    name: "full",
    starts: 200,
    shims: &[1, 50, 200],
    many: 50,
    added: 50,
    watch: Duration::from_secs(60),
    calls: 100,
    bursts: 10,
    streams: 9,
    bytes: 1 << 30,
    events: 5000,
    calls_under_load: 2000,
    rates: 9,
    work: (1000, 5000),
    managed: 1000,
    reloads: 9,
    passing: 2000,
    streamed: 256,
};

/// Says nothing about speed: does every case run?
pub const SMOKE: Effort = Effort {
    name: "smoke",
    starts: 2,
    shims: &[1, 4],
    many: 4,
    added: 2,
    watch: Duration::from_secs(1),
    calls: 2,
    bursts: 1,
    streams: 1,
    bytes: 8 << 20,
    events: 50,
    calls_under_load: 20,
    rates: 1,
    work: (2, 4),
    managed: 4,
    reloads: 1,
    passing: 20,
    streamed: 4,
};

/// The effort of a name.
#[must_use]
pub fn named(name: &str) -> Option<Effort> {
    [QUICK, FULL, SMOKE].into_iter().find(|effort| effort.name == name)
}
