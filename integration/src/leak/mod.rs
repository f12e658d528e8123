//! What exists on this machine because of someone, found from outside: in `/proc`, `/sys` and the directories that
//! containers leave their traces in. Taken before and after some work, the difference is what leaked.
//!
//! Tests run side by side, so a snapshot is scoped: every fixture has a *token* that no one else has. The token is in
//! the environment of all processes it starts (and so of whatever those start), in the names of its namespace, its
//! containers and its directories, and by those in command lines, mount points and cgroup paths. The names of shim
//! sockets are hashes, so a fixture lists those it may have caused.
//!
//! With [`Scope::machine`] everything of these kinds is seen, whoever it belongs to.

mod cgroup;
mod descriptor;
mod file;
mod mount;
mod process;
mod socket;
mod sweep;
mod usage;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use descriptor::Descriptors;
pub use process::MARKER;
pub use sweep::sweep;
pub use usage::Usage;

/// The kinds of things that get left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// A process or a zombie.
    Process,
    /// A Unix socket: a file, or a bound name that has none.
    Socket,
    /// A mount.
    Mount,
    /// A cgroup directory in any hierarchy.
    Cgroup,
    /// A fifo.
    Fifo,
    /// A file or directory in a place that should be empty.
    File,
    /// A loop device with a backing file.
    Loop,
    /// An open descriptor of a process that is watched.
    Descriptor,
}

/// One thing that exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// What tells it from others of its kind: a path, or a pid with its start time.
    pub name: String,
    /// What a person wants to know of it besides.
    pub detail: String,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}", self.kind, self.name, self.detail)
    }
}

/// Whose things a snapshot looks for.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The string that only the scope's things carry; none: everything of the machine.
    pub token: Option<String>,
    /// Directories in which anything at all is a trace.
    pub places: Vec<PathBuf>,
    /// Sockets that the scope may have caused, whose names do not show it.
    pub sockets: Vec<PathBuf>,
    /// Processes that stay, and are to hold no more afterwards than before.
    pub watched: Vec<u32>,
}

/// Where containerd, its shims and the OCI runtimes leave things on every host, whatever their configuration.
const SHARED_PLACES: [&str; 5] = [
    "/run/containerd/s",
    "/run/containerd/fifo",
    "/run/containerd/runc",
    "/run/containerd/io.containerd.runtime.v2.task",
    "/run/runc",
];

impl Scope {
    /// The scope of one fixture.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::default() }
    }

    /// Everything on this machine.
    #[must_use]
    pub fn machine() -> Self {
        let places = SHARED_PLACES.iter().map(PathBuf::from).collect();
        Self { places, ..Self::default() }
    }

    /// Does this text show that a thing belongs to the scope?
    fn claims(&self, text: &str) -> bool {
        self.token.as_ref().is_none_or(|token| text.contains(token.as_str()))
    }
}

/// All things of a scope at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    items: BTreeSet<Item>,
}

impl Snapshot {
    /// Looks everywhere. Things that vanish while being looked at are not there.
    #[must_use]
    pub fn take(scope: &Scope) -> Self {
        let mut items = BTreeSet::new();
        items.extend(process::find(scope));
        items.extend(socket::find(scope));
        items.extend(mount::find(scope));
        items.extend(mount::find_loops(scope));
        items.extend(cgroup::find(scope));
        items.extend(file::find(scope));
        items.extend(descriptor::find(scope));
        Self { items }
    }

    /// What is here and was not in `before`. A thing is the same thing by kind and name.
    #[must_use]
    pub fn since(&self, before: &Self) -> Vec<Item> {
        let known: BTreeSet<(Kind, &str)> =
            before.items.iter().map(|item| (item.kind, item.name.as_str())).collect();
        let new = |item: &&Item| !known.contains(&(item.kind, item.name.as_str()));
        self.items.iter().filter(new).cloned().collect()
    }

    /// Everything in it.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }
}

/// Waits until everything of the scope that was not in `before` is gone, and gives what is still there at the end.
/// Ends are asynchronous (a process exits after its last answer, the kernel frees its cgroup later): hence the wait.
#[must_use]
pub fn settle(scope: &Scope, before: &Snapshot, limit: Duration) -> Vec<Item> {
    /// Between two looks; one look reads all of /proc, so not too often.
    const LOOK: Duration = Duration::from_millis(25);
    let start = Instant::now();
    loop {
        let leaked = Snapshot::take(scope).since(before);
        if leaked.is_empty() || start.elapsed() > limit {
            return leaked;
        }
        std::thread::sleep(LOOK);
    }
}
