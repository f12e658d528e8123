//! Tests with cgroups of the running kernel, whichever version it has. They need root.

mod kills;
mod places;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::layout::V1Group;
use super::*;
use crate::mount::on_this_kernel::skip;

/// Less than what the tests of kills take at once.
const LIMIT: &str = "16777216";

/// A shell that is killed when the test ends, however it ends.
pub(super) struct Shell(Child);

impl Shell {
    pub(super) fn run(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("sh"))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for the end.
    #[expect(clippy::disallowed_methods, reason = "the tests here have no reaper")]
    fn join(&mut self) {
        // A test of the reaper in this process may have been faster; gone is gone.
        let _ = self.0.wait();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.join();
    }
}

/// Fresh cgroups: one on a unified host, one in each hierarchy on others.
struct Fresh {
    cgroup: Cgroup,
}

impl Fresh {
    /// `None`, with a word about it, where cgroups cannot be made.
    fn new(name: &str) -> Option<Self> {
        let name = format!("shim-test-{}-{name}", std::process::id());
        let layout = match Cgroup::of_pid(std::process::id()).expect("own cgroup").layout() {
            // Only below the top can controllers be had while processes are in the own cgroup.
            Layout::Unified { top, .. } => {
                Layout::Unified { top: top.clone(), dir: top.join(&name) }
            }
            Layout::V1(own) => {
                let below = |group: &V1Group| V1Group {
                    controllers: group.controllers.clone(),
                    directory: group.directory.join(&name),
                    is_top: false,
                };
                Layout::V1(own.iter().map(below).collect())
            }
        };
        let fresh = Self { cgroup: Cgroup::from(layout) };
        for directory in fresh.directories() {
            if let Err(error) = fs::create_dir(&directory) {
                skip(&format!("cgroups: cannot make {}: {error}", directory.display()));
                return None;
            }
            copy_cpuset(&directory);
        }
        fresh.cgroup.enable_controllers();
        Some(fresh)
    }

    fn directories(&self) -> Vec<PathBuf> {
        match self.cgroup.layout() {
            Layout::Unified { dir, .. } => vec![dir.clone()],
            Layout::V1(own) => own.iter().map(|group| group.directory.clone()).collect(),
        }
    }

    /// Runs a script in the cgroup.
    fn run(&self, script: &str) -> Shell {
        let enter =
            |directory: &PathBuf| format!("echo $$ > '{}/cgroup.procs'; ", directory.display());
        let enter: String = self.directories().iter().map(enter).collect();
        Shell::run(&format!("{enter}{script}"))
    }

    fn limit_memory(&self) {
        let directory = self.cgroup.layout().controller("memory").unwrap();
        limit_memory(directory, self.cgroup.is_unified());
    }

    fn file(&self, controller: &str, name: &str) -> String {
        let directory = self.cgroup.layout().controller(controller).unwrap();
        fs::read_to_string(directory.join(name)).unwrap().trim().to_owned()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        for directory in self.directories() {
            let mut left: Vec<_> =
                fs::read_dir(&directory).into_iter().flatten().flatten().collect();
            left.retain(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for directory in left.into_iter().map(|entry| entry.path()).chain([directory]) {
                // A killed process leaves its cgroup a moment after it has been waited for.
                let removed = (0..500).any(|_| {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    fs::remove_dir(&directory).is_ok() || !directory.exists()
                });
                assert!(removed || std::thread::panicking(), "{} stays", directory.display());
            }
        }
    }
}

/// A v1 cpuset takes no process before it has processors and memory of its own.
fn copy_cpuset(directory: &Path) {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(parents) = fs::read(directory.join("..").join(name)) {
            let _ = fs::write(directory.join(name), parents);
        }
    }
}

fn limit_memory(directory: &Path, unified: bool) {
    let (limit, swap, none) = match unified {
        true => ("memory.max", "memory.swap.max", "0"),
        false => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", LIMIT),
    };
    fs::write(directory.join(limit), LIMIT).unwrap();
    // There is no such file in kernels without swap.
    let _ = fs::write(directory.join(swap), none);
}
