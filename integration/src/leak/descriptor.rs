//! What a process holds open, as a bag: two processes that do the same hold the same, under other numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Item, Kind, Scope};
use crate::paths::entries;

/// How many descriptors lead to each kind of thing: a path, or `socket`, `pipe`, `anon_inode:[eventfd]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Descriptors(BTreeMap<String, usize>);

impl Descriptors {
    /// Those of a process; none if it is gone.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let mut held = Self::default();
        for fd in entries(&PathBuf::from(format!("/proc/{pid}/fd"))) {
            if let Some(kind) = target(&fd) {
                *held.0.entry(kind).or_default() += 1;
            }
        }
        held
    }

    /// Takes away what another holds too.
    pub fn remove(&mut self, other: &Self) {
        for (kind, count) in &mut self.0 {
            *count = count.saturating_sub(other.0.get(kind).copied().unwrap_or_default());
        }
        self.0.retain(|_, count| *count > 0);
    }

    /// Whether one of them leads to a directory.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        self.0.keys().any(|target| Path::new(target).is_dir())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> =
            self.0.iter().map(|(kind, count)| format!("{count} x {kind}")).collect();
        f.write_str(&list.join(", "))
    }
}

/// `socket:[123]` is a socket: its number is of no use to anybody who compares.
fn target(fd: &Path) -> Option<String> {
    let path = fs::read_link(fd).ok()?.display().to_string();
    let kind = ["socket:[", "pipe:["].iter().find(|kind| path.starts_with(**kind));
    Some(kind.map_or(path.clone(), |kind| kind.trim_end_matches(":[").to_owned()))
}

/// The descriptors of the processes that the scope watches, each by what it leads to and its number among those.
pub(super) fn find(scope: &Scope) -> Vec<Item> {
    let mut found = Vec::new();
    for pid in &scope.watched {
        for (kind, count) in Descriptors::of(*pid).0 {
            found.extend((1..=count).map(|n| Item {
                kind: Kind::Descriptor,
                name: format!("{kind} ({n}) of {pid}"),
                detail: String::new(),
            }));
        }
    }
    found
}
