//! Processor time and context switches of a whole process, all its threads together.

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

/// How often the living threads of a process were switched to and from. `/proc/PID/status` has it of one thread only.
pub(super) fn switches(pid: u32) -> f64 {
    let of = |thread: &Path| {
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        let numbers = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
        numbers.filter_map(|(_, number)| number.trim().parse::<f64>().ok()).sum::<f64>()
    };
    entries(Path::new(&format!("/proc/{pid}/task"))).map(|thread| of(&thread)).sum()
}
