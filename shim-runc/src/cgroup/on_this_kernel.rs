//! Tests with cgroups of the running kernel, whichever version it has. They need root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use runtime_proto::errdefs::Code;
use runtime_proto::metrics::{v1, v2};

use super::*;
use crate::mount::on_this_kernel::skip;

/// To detect a hang only; nothing here takes a second.
const LONG: Duration = Duration::from_secs(60);
/// More than the limit below, touched at once.
const HOG: &str = "exec dd if=/dev/zero of=/dev/null bs=64M count=1";
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
            Layout::V1(own) => Layout::V1(
                own.iter()
                    .map(|(names, directory)| (names.clone(), directory.join(&name)))
                    .collect(),
            ),
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
            Layout::V1(own) => own.iter().map(|(_, directory)| directory.clone()).collect(),
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
                    std::thread::sleep(Duration::from_millis(10));
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

async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, event).await.expect("within a minute")
}

#[test]
fn the_cgroup_of_a_process_is_found_and_measured() {
    let Some(fresh) = Fresh::new("stats") else { return };
    // What it takes before it is moved is not charged here.
    let shell = fresh.run("x=$(dd if=/dev/zero bs=1M count=1 | tr '\\0' x); while :; do :; done");
    while fresh.file("pids", "pids.current") == "0" {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It joins one hierarchy after the other.
    let found = loop {
        let found = Cgroup::of_pid(shell.pid()).unwrap();
        if found.layout() == fresh.cgroup.layout() {
            break found;
        }
    };
    while cpu_time(&found) == 0 || memory_usage(&found) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stats = found.stats().unwrap();
    if found.is_unified() {
        let metrics: v2::Metrics = any::unpack(&stats).unwrap().expect("v2 metrics");
        assert!(metrics.pids.current > 0);
        assert_eq!(metrics.memory.usage_limit, u64::MAX);
    } else {
        let metrics: v1::Metrics = any::unpack(&stats).unwrap().expect("v1 metrics");
        assert!(metrics.pids.current > 0);
        let limit = fresh.file("memory", "memory.limit_in_bytes");
        assert_eq!(metrics.memory.usage.limit.to_string(), limit);
        assert!(metrics.cpu.usage.per_cpu.iter().sum::<u64>() > 0);
    }
}

fn memory_usage(cgroup: &Cgroup) -> u64 {
    let stats = cgroup.stats().unwrap();
    match cgroup.is_unified() {
        true => any::unpack::<v2::Metrics>(&stats).unwrap().unwrap().memory.usage,
        false => any::unpack::<v1::Metrics>(&stats).unwrap().unwrap().memory.usage.usage,
    }
}

fn cpu_time(cgroup: &Cgroup) -> u64 {
    let stats = cgroup.stats().unwrap();
    match cgroup.is_unified() {
        true => any::unpack::<v2::Metrics>(&stats).unwrap().unwrap().cpu.usage_usec,
        false => any::unpack::<v1::Metrics>(&stats).unwrap().unwrap().cpu.usage.total,
    }
}

#[test]
fn a_removed_cgroup_is_not_found() {
    let Some(fresh) = Fresh::new("gone") else { return };
    let cgroup = fresh.cgroup.clone();
    drop(fresh);
    assert_eq!(cgroup.stats().unwrap_err().kind(), Code::NotFound);
    assert_eq!(cgroup.freezer_state().unwrap_err().kind(), Code::NotFound);
    cgroup.enable_controllers();
}

#[tokio::test]
async fn a_kill_is_known_when_the_process_is_gone_and_told_once() {
    let Some(fresh) = Fresh::new("oom-poll") else { return };
    fresh.limit_memory();
    let watch = OomWatch::open(&fresh.cgroup).unwrap();
    for _ in 0..10 {
        assert!(!watch.poll_now(), "nothing happened yet");
        fresh.run(HOG).join();
        assert!(watch.poll_now(), "known before anything is awaited");
    }
    fresh.run("exit 0").join();
    assert!(!watch.poll_now(), "an ordinary exit is none");
}

#[tokio::test]
async fn a_kill_of_a_child_wakes_the_waiter() {
    let Some(fresh) = Fresh::new("oom-wait") else { return };
    fresh.limit_memory();
    let watch = OomWatch::open(&fresh.cgroup).unwrap();
    let _shell = fresh.run(&format!("sh -c '{HOG}'; exec sleep 1000"));
    assert_eq!(soon(watch.next()).await, Some(()));
    assert!(!watch.poll_now(), "told already");
    let again = fresh.run(HOG);
    assert_eq!(soon(watch.next()).await, Some(()));
    drop(again);
    let nothing = tokio::time::timeout(Duration::from_millis(100), watch.next()).await;
    assert!(nothing.is_err() && !watch.poll_now(), "both were told");
}

#[tokio::test]
async fn a_kill_in_a_cgroup_below_counts() {
    let Some(fresh) = Fresh::new("oom-below") else { return };
    fresh.limit_memory();
    let watch = OomWatch::open(&fresh.cgroup).unwrap();
    let below = fresh.cgroup.layout().controller("memory").unwrap().join("below");
    fs::create_dir(&below).unwrap();
    let enter = format!("echo $$ > '{}/cgroup.procs'", below.display());
    Shell::run(&format!("{enter}; {HOG}")).join();
    assert_eq!(soon(watch.next()).await, Some(()));
}

#[tokio::test]
async fn a_kill_of_a_neighbour_is_not_ours() {
    let Some(parent) = Fresh::new("oom-pod") else { return };
    parent.limit_memory();
    let pod = parent.cgroup.layout().controller("memory").unwrap().to_owned();
    if parent.cgroup.is_unified() {
        fs::write(pod.join("cgroup.subtree_control"), "+memory").unwrap();
    }
    let watch_below = |name: &str| {
        let dir = pod.join(name);
        fs::create_dir(&dir).unwrap();
        let layout = match parent.cgroup.layout() {
            Layout::Unified { top, .. } => Layout::Unified { top: top.clone(), dir: dir.clone() },
            Layout::V1(_) => Layout::V1(vec![(vec!["memory".into()], dir.clone())]),
        };
        (OomWatch::open(&Cgroup::from(layout)).unwrap(), dir)
    };
    let ((victim, dir), (neighbour, _)) = (watch_below("victim"), watch_below("neighbour"));
    Shell::run(&format!("echo $$ > '{}/cgroup.procs'; {HOG}", dir.display())).join();
    assert!(victim.poll_now(), "killed by the limit of the cgroup above");
    let told = tokio::time::timeout(Duration::from_millis(100), neighbour.next()).await;
    assert!(told.is_err() && !neighbour.poll_now(), "the neighbour lost nobody");
}

#[tokio::test]
async fn a_watch_leaves_no_descriptor_behind() {
    let Some(fresh) = Fresh::new("oom-fds") else { return };
    // The other tests in this process open some, too, but never that many.
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..200 {
        let watch = OomWatch::open(&fresh.cgroup).unwrap();
        let waiting = tokio::time::timeout(Duration::ZERO, watch.next()).await;
        assert!(waiting.is_err());
    }
    assert!(open() < before + 100, "{} descriptors before, {} after", before, open());
    let without = Cgroup::from(Layout::V1(vec![(vec!["pids".into()], "/".into())]));
    assert_eq!(OomWatch::open(&without).unwrap_err().kind(), Code::NotFound);
}

#[test]
fn a_frozen_cgroup_is_seen_and_thawed() {
    let Some(fresh) = Fresh::new("freezer") else { return };
    let _shell = fresh.run("exec sleep 1000");
    let (file, word) = if fresh.cgroup.is_unified() {
        ("cgroup.freeze", "1")
    } else {
        ("freezer.state", "FROZEN")
    };
    let directory = fresh.cgroup.layout().controller("freezer").unwrap();
    assert_eq!(fresh.cgroup.freezer_state().unwrap(), FreezerState::Thawed);
    fs::write(directory.join(file), word).unwrap();
    assert_ne!(fresh.cgroup.freezer_state().unwrap(), FreezerState::Thawed);
    fresh.cgroup.thaw().unwrap();
    assert_eq!(fresh.cgroup.freezer_state().unwrap(), FreezerState::Thawed);
}

#[test]
fn a_pid_is_moved_into_the_cgroup_of_that_name() {
    let Some(fresh) = Fresh::new("join") else { return };
    let shell = Shell::run("exec sleep 1000");
    // On v1 the fresh cgroups are below the own ones, which differ by hierarchy.
    let Layout::Unified { top, dir } = fresh.cgroup.layout() else {
        return joins_where_it_exists(&shell);
    };
    let path = Path::new("/").join(dir.strip_prefix(top).unwrap());
    add_pid(path.to_str().unwrap(), shell.pid()).unwrap();
    assert_eq!(fresh.file("pids", "cgroup.procs"), shell.pid().to_string());
    assert!(add_pid(path.to_str().unwrap(), u32::MAX).is_err(), "no such process");
}

fn joins_where_it_exists(shell: &Shell) {
    let own = Cgroup::of_pid(std::process::id()).unwrap();
    let Some(memory) = layout::cgroup_mounts().unwrap().into_iter().find(|m| m.has("memory"))
    else {
        return;
    };
    let name = format!("shim-test-{}-join-v1", std::process::id());
    let layout = Layout::V1(vec![(vec!["memory".into()], memory.mount_point.join(&name))]);
    let only = Fresh { cgroup: Cgroup::from(layout) };
    fs::create_dir(memory.mount_point.join(&name)).unwrap();
    add_pid(&format!("/{name}"), shell.pid()).unwrap();
    assert_eq!(only.file("memory", "cgroup.procs"), shell.pid().to_string());
    let back = own.layout().controller("memory").unwrap().join("cgroup.procs");
    fs::write(back, shell.pid().to_string()).unwrap();
}

#[test]
fn controllers_are_handed_down_to_a_cgroup_deep_below() {
    let Some(fresh) = Fresh::new("deep") else { return };
    let Layout::Unified { top, dir } = fresh.cgroup.layout() else { return };
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    let deep = Cgroup::from(Layout::Unified { top: top.clone(), dir: below.clone() });
    assert!(!below.join("pids.current").exists());
    deep.enable_controllers();
    for file in ["pids.current", "memory.current"] {
        assert!(below.join(file).exists(), "{file}");
    }
}
