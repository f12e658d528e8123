//! Processor time and context switches of a whole process, all its threads together.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::failure::Result;
use crate::paths::entries;

/// Processor time of a process so far, in nanoseconds, threads that have ended included.
///
/// # Errors
/// When there is no such process.
pub(super) fn processor_time(pid: u32) -> Result<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
    let time = clock_gettime(clock)?;
    Ok(time.tv_sec() as f64 * 1e9 + time.tv_nsec() as f64)
}

/// How often the threads of a process are switched to and from, while it is looked at now and then. The kernel forgets
/// what a thread has counted when it ends: what it did since the last look is then missing, never what it did before.
#[derive(Debug)]
pub(super) struct Switches {
    pid: u32,
    /// Of every thread, by its number, what it had counted when it was last seen.
    seen: HashMap<OsString, u64>,
    count: u64,
}

impl Switches {
    /// Begins to count those of a process.
    pub(super) fn of(pid: u32) -> Self {
        let mut switches = Self { pid, seen: HashMap::new(), count: 0 };
        switches.look();
        switches.count = 0;
        switches
    }

    /// Looks again.
    pub(super) fn look(&mut self) {
        let threads = entries(Path::new(&format!("/proc/{}/task", self.pid)));
        let counted = threads.filter_map(|thread| {
            let status = fs::read_to_string(thread.join("status")).ok()?;
            Some((thread.file_name()?.to_owned(), of_thread(&status)))
        });
        self.note(counted.collect());
    }

    fn note(&mut self, counted: HashMap<OsString, u64>) {
        for (thread, count) in &counted {
            let before = self.seen.get(thread).copied().unwrap_or(0);
            // A smaller one is that of another thread with the number of one that has ended.
            self.count += count.checked_sub(before).unwrap_or(*count);
        }
        self.seen = counted;
    }

    /// How often it has been since it was begun.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

fn of_thread(status: &str) -> u64 {
    let numbers = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    numbers.filter_map(|(_, number)| number.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_come_count_and_those_that_end_take_nothing_away() {
        let seen = |threads: &[(&str, u64)]| {
            threads.iter().map(|(thread, count)| (OsString::from(thread), *count)).collect()
        };
        let mut switches = Switches { pid: 0, seen: seen(&[("1", 10), ("2", 70)]), count: 0 };
        switches.note(seen(&[("1", 11), ("3", 2)]));
        assert_eq!(switches.count(), 3);
        // The number of the one that ended is given to another one.
        switches.note(seen(&[("1", 11), ("3", 2), ("2", 4)]));
        switches.note(seen(&[("1", 11), ("3", 1)]));
        assert_eq!(switches.count(), 3 + 4 + 1);
    }

    #[test]
    fn both_kinds_count() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(of_thread(status), 7);
    }
}
