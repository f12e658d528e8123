//! What one long-lived process holds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Result};
use crate::paths::entries;

/// Open files, threads and memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// What each open descriptor leads to.
    pub fds: Vec<String>,
    /// How many threads there are.
    pub threads: usize,
    /// Resident memory, in kB.
    pub rss: u64,
    /// Its share of the memory, in kB: what it shares with others counts in part.
    pub pss: u64,
    /// Memory that nobody shares and that has to be kept, in kB.
    pub private_dirty: u64,
    /// Processor time, user and system, in clock ticks.
    pub ticks: u64,
    /// How often it was switched to and from.
    pub switches: u64,
}

impl Usage {
    /// Measures a process.
    ///
    /// # Errors
    /// When there is no such process, or it may not be looked at.
    pub fn of(pid: u32) -> Result<Self> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let read = |file: &str| {
            fs::read_to_string(dir.join(file)).context(format!("{}/{file}", dir.display()))
        };
        let memory = read("smaps_rollup")?;
        let status = read("status")?;
        let stat = read("stat")?;
        let times = stat.rsplit_once(") ").map_or("", |(_, tail)| tail);
        let ticks = times.split(' ').skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Ok(Self {
            fds: entries(&dir.join("fd")).map(|fd| link(&fd)).collect(),
            threads: entries(&dir.join("task")).count(),
            rss: field(&memory, "Rss:"),
            pss: field(&memory, "Pss:"),
            private_dirty: field(&memory, "Private_Dirty:"),
            ticks,
            switches: field(&status, "voluntary_ctxt_switches:")
                + field(&status, "nonvoluntary_ctxt_switches:"),
        })
    }
}

fn link(fd: &Path) -> String {
    fs::read_link(fd).map_or_else(|_| "?".to_owned(), |path| path.display().to_string())
}

/// The number behind a name in one of /proc's tables; 0 where this kernel has none.
fn field(table: &str, name: &str) -> u64 {
    let line = table.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_measured() {
        let file = fs::File::open("/dev/null").expect("/dev/null opens");
        let usage = Usage::of(std::process::id()).expect("this process exists");
        assert!(usage.fds.iter().any(|fd| fd == "/dev/null"), "{usage:?}");
        assert!(usage.threads >= 1 && usage.rss > 100 && usage.pss > 0, "{usage:?}");
        drop(file);
    }
}
