//! What can only be counted in a process of its own: descriptors, threads, and the umask. All in
//! one test, since they belong to the whole process.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "manager/support.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::Signal,
    stat::{Mode, umask},
};
use runtime_v2::ProcessId;
use serde_json::json;
use support::{Fixture, eventually, good, key, signal, timed};

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

fn resident_kb() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn modes_do_not_depend_on_the_umask() {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    for mask in [0o000, 0o077] {
        let before = umask(Mode::from_bits(mask).unwrap());
        let host = Fixture::new(&good());
        host.run("c1").await;
        let bundle = host.bundle("c1");
        let modes = [
            (host.path("state"), 0o711),
            (host.path("state/ns"), 0o711),
            (bundle.clone(), 0o700),
            (bundle.join("rootfs"), 0o711),
            (bundle.join("config.json"), 0o600),
            (bundle.join("bootstrap.json"), 0o644),
            (bundle.join("shim-binary-path"), 0o600),
            (host.path("root/ns"), 0o711),
            (host.path("root/ns/c1"), 0o711),
        ];
        for (path, wanted) in modes {
            assert_eq!(mode(&path), wanted, "{} under {mask:o}", path.display());
        }
        assert_eq!(mode(&bundle.join("log")) & 0o077, 0, "the log is for its owner");
        host.end("c1").await;
        umask(before);
    }
}

async fn cycles(host: &Fixture) {
    for _ in 0..20 {
        host.script(&json!({ "start": "fails_early" }));
        host.create("c1").await.unwrap_err();
        host.script(&json!({ "start": "fails_late" }));
        host.create("c1").await.unwrap_err();
        host.script(&json!({ "calls": { "Create": { "refuses": 2 } } }));
        host.create("c1").await.unwrap_err();
        host.script(&json!({ "log_bytes": 200_000 }));
        host.run("c1").await;
        host.end("c1").await;
        host.run("c1").await;
        signal(*host.launched().last().unwrap(), Signal::SIGKILL);
        eventually("forgotten", || host.manager().shims().list(None).is_empty()).await;
        timed(host.manager().settled()).await;
    }
}

async fn nothing_is_kept_open(host: &Fixture) {
    cycles(host).await;
    let (fds, count) = (descriptors(), threads());
    for _ in 0..3 {
        cycles(host).await;
    }
    eventually("descriptors return", || descriptors() <= fds).await;
    // Threads of the blocking pool come and go; more than the first cycles had is a leak.
    assert!(threads() <= count + 8, "{} threads, {count} before", threads());
    host.assert_clean().await;
}

async fn calls_into_a_stopped_shim_cost_no_memory(host: &Fixture) {
    let task = host.run("c1").await;
    let shim = *host.launched().last().unwrap();
    signal(shim, Signal::SIGSTOP);
    let asking = task.clone().within(Duration::from_millis(1));
    for _ in 0..200 {
        timed(asking.state(&ProcessId::Init)).await.unwrap_err();
    }
    let before = resident_kb();
    for _ in 0..2000 {
        timed(asking.state(&ProcessId::Init)).await.unwrap_err();
    }
    let grown = resident_kb().saturating_sub(before);
    assert!(grown < 4096, "{grown} kB for calls that are over");
    signal(shim, Signal::SIGCONT);
    timed(task.state(&ProcessId::Init)).await.unwrap();
    host.end("c1").await;
    timed(host.manager().get(&key("c1"))).await.unwrap_err();
}

fn limit_descriptors(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

/// The highest descriptor in use.
fn last_descriptor() -> u64 {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.to_str().unwrap().parse().unwrap()).max().unwrap()
}

async fn events_come_again_after_descriptors_ran_out(host: &Fixture) {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Every descriptor below the limit is taken; the last is given back for the client's end.
    let mut held = Vec::new();
    limit_descriptors(last_descriptor() + 8);
    while let Ok(file) = fs::File::open("/dev/null") {
        held.push(file);
    }
    held.pop();
    let stream = std::os::unix::net::UnixStream::connect(host.path("events")).unwrap();
    // Long enough for an accept that fails; a shorter time would only make this easier.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop((stream, held));
    limit_descriptors(soft);
    host.run("c1").await;
    host.end("c1").await;
    assert_eq!(host.record.exits("c1").last().map(|seen| seen.status), Some(137));
    assert!(host.path("events").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_stays_as_it_was() {
    modes_do_not_depend_on_the_umask().await;
    let host = Fixture::new(&good());
    nothing_is_kept_open(&host).await;
    calls_into_a_stopped_shim_cost_no_memory(&host).await;
    let host = Fixture::new(&good());
    events_come_again_after_descriptors_ran_out(&host).await;
}
