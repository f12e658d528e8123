//! Loading: the living go on, and nobody waits for the silent.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use runtime_proto::task::Status;
use runtime_v2::{Code, ProcessId};
use serde_json::json;

use crate::support::{Fixture, alive, eventually, good, key, signal, timed};

const INIT: ProcessId = ProcessId::Init;

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_on_over_a_restart() {
    let mut host = Fixture::new(&good());
    let mut pids = Vec::new();
    for id in ["a", "b", "c"] {
        pids.push(host.run(id).await.pid());
    }
    let report = host.restart().await;
    assert_eq!(report.loaded, [key("a"), key("b"), key("c")]);
    let tasks = host.manager().list(None);
    assert_eq!(tasks.iter().map(runtime_v2::Task::pid).collect::<Vec<_>>(), pids);
    for task in tasks {
        assert_eq!(timed(task.state(&INIT)).await.unwrap().status, Status::RUNNING);
    }
    for id in ["a", "b", "c"] {
        host.end(id).await;
    }
    host.assert_clean().await;
    assert_eq!(host.count("v3 Pids a"), 0, "no OCI runtime is run where memory answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_while_nobody_looked_is_found_as_it_was() {
    let mut host = Fixture::new(&good());
    let task = host.run("c1").await;
    let address = task.shim().address().to_owned();
    drop(task);
    host.stop_manager().await;
    // The container ends by itself: told to over a connection of its own.
    let stream =
        tokio::net::UnixStream::connect(address.strip_prefix("unix://").unwrap()).await.unwrap();
    let connection = runtime_v2::ttrpc::Connection::new(stream, Vec::new());
    let mut kill = runtime_proto::task::KillRequest::new();
    (kill.id, kill.signal) = ("c1".into(), 7);
    let payload = protobuf::Message::write_to_bytes(&kill).unwrap();
    connection.call(runtime_proto::task::SERVICE_V3, "Kill", payload, None).await.unwrap();
    host.start_manager();
    assert_eq!(host.load().await.loaded, [key("c1")], "it has no process, but it is no leak");
    let task = timed(host.manager().get(&key("c1"))).await.unwrap();
    let state = timed(task.state(&INIT)).await.unwrap();
    assert_eq!((state.status, state.exit.unwrap().status), (Status::STOPPED, 135));
    assert_eq!(timed(host.manager().delete(&key("c1"))).await.unwrap().status, 135);
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_read_costs_no_container() {
    type Damage = fn(&std::path::Path);
    let damages: [Damage; 3] = [
        |log| fs::write(log, "a file").unwrap(),
        |log| fs::create_dir(log).unwrap(),
        |log| std::os::unix::fs::symlink("nowhere/log", log).unwrap(),
    ];
    let mut host = Fixture::new(&good());
    for damage in damages {
        let pid = host.run("c1").await.pid();
        host.stop_manager().await;
        fs::remove_file(host.bundle("c1").join("log")).unwrap();
        damage(&host.bundle("c1").join("log"));
        host.start_manager();
        assert_eq!(host.load().await.loaded, [key("c1")]);
        assert_eq!(host.manager().list(None)[0].pid(), pid);
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_without_a_task_is_ended() {
    let mut host = Fixture::new(&json!({ "calls": { "Create": { "hangs": true } } }));
    let (manager, options) = (host.manager().clone(), host.options());
    let creating = tokio::spawn(async move { manager.create(key("c1"), options).await });
    eventually("asked to create", || host.count("v3 Create c1") == 1).await;
    // The manager's process dies here: its directories as they are now, the shim alive.
    fs::create_dir_all(host.path("later")).unwrap();
    let copied = std::process::Command::new("cp")
        .args(["-a", "state", "root", "later"])
        .current_dir(host.dir.path())
        .status()
        .unwrap();
    assert!(copied.success());
    let mut later = Fixture::without_manager(&good());
    for dir in ["state", "root"] {
        fs::rename(host.path("later").join(dir), later.path(dir)).unwrap();
    }
    later.start_manager();
    let report = later.load().await;
    assert_eq!(report.leaked, [key("c1")]);
    eventually("the shim ends", || host.living().is_empty()).await;
    assert!(later.left_over().is_empty());
    assert!(later.record.all().is_empty(), "nothing ran, so nothing is told");
    let _ = timed(creating).await;
    host.stop_manager().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_may_be_without_a_task() {
    let mut host = Fixture::new(&good());
    let task = host.run("pod").await;
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    host.store.insert_sandbox(key("pod"));
    drop(task);
    host.script(&json!({ "calls": { "State": { "refuses": 5 }, "Pids": { "refuses": 5 } } }));
    assert_eq!(host.restart().await.loaded, [key("pod")]);
    host.store.remove_sandbox(&key("pod"));
    assert_eq!(host.restart().await.leaked, [key("pod")]);
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_proves_nothing_is_no_reason_to_end_a_shim() {
    let mut host = Fixture::new(&good());
    host.run("c1").await;
    host.script(&json!({ "calls": { "State": { "refuses": 2 }, "Pids": { "refuses": 2 } } }));
    assert_eq!(host.restart().await.loaded, [key("c1")]);
    host.script(&good());
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_shim_delays_nobody() {
    let mut host = Fixture::new(&good());
    for id in ["a", "b", "c", "silent"] {
        host.run(id).await;
    }
    host.stop_manager().await;
    let silent = host.launched()[3];
    signal(silent, Signal::SIGSTOP);
    host.start_manager();
    let mut loading = timed(host.manager().load()).await.unwrap();
    let before = Instant::now();
    timed(loading.ready()).await;
    let ready = before.elapsed();
    assert_eq!(host.manager().list(None).len(), 3);
    host.end("a").await;
    assert_eq!(host.create("silent").await.unwrap_err().kind(), Code::AlreadyExists);
    let report = timed(loading.finish()).await.unwrap();
    let whole = before.elapsed();
    assert!(ready < whole && whole > Duration::from_secs(4), "{ready:?} {whole:?}");
    assert_eq!(report.dead, [key("silent")]);
    assert!(!alive(silent), "it would be a leak as soon as it went on");
    assert!(!host.bundle("silent").exists());
    assert_eq!(host.count("delete silent"), 1);
    assert_eq!(timed(host.manager().get(&key("silent"))).await.unwrap_err().kind(), Code::NotFound);
    for id in ["b", "c"] {
        host.end(id).await;
    }
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_for_a_task_that_is_still_looked_at_waits_for_it() {
    let mut host = Fixture::new(&good());
    host.run("c1").await;
    host.stop_manager().await;
    host.script(&json!({ "calls": { "Connect": { "until": "go" } } }));
    host.start_manager();
    let loading = timed(host.manager().load()).await.unwrap();
    let getting = tokio::spawn({
        let manager = host.manager().clone();
        async move { manager.get(&key("c1")).await }
    });
    eventually("asked", || host.count("v3 Connect c1") == 1).await;
    fs::write(host.path("go"), "").unwrap();
    timed(getting).await.unwrap().unwrap();
    timed(loading.finish()).await.unwrap();
    host.end("c1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_of_a_task_that_is_still_looked_at_waits_for_it() {
    let mut host = Fixture::new(&good());
    let task = host.run("c1").await;
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    drop(task);
    host.stop_manager().await;
    host.script(&json!({ "calls": { "Connect": { "until": "go" } } }));
    host.start_manager();
    let loading = timed(host.manager().load()).await.unwrap();
    let deleting = tokio::spawn({
        let manager = host.manager().clone();
        async move { manager.delete(&key("c1")).await }
    });
    eventually("asked", || host.count("v3 Connect c1") == 1).await;
    fs::write(host.path("go"), "").unwrap();
    assert_eq!(timed(deleting).await.unwrap().unwrap().status, 137);
    timed(loading.finish()).await.unwrap();
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_deleted_container_does_not_cost_its_pod_the_shim() {
    let mut host = Fixture::new(&json!({ "group": "pod" }));
    // The process was started in the bundle of the first, and names it.
    for id in ["pod", "app"] {
        host.run(id).await;
    }
    let task = timed(host.manager().get(&key("pod"))).await.unwrap();
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    drop(task);
    // In the way of the removal, which so ends where a manager might be killed.
    let obstacle = host.bundle("pod").join("rootfs/file");
    fs::write(&obstacle, "").unwrap();
    timed(host.manager().delete(&key("pod"))).await.unwrap_err();
    host.stop_manager().await;
    fs::remove_file(obstacle).unwrap();
    host.start_manager();
    let report = host.load().await;
    assert_eq!((report.loaded, report.dead), (vec![key("app")], vec![key("pod")]));
    assert!(alive(host.launched()[0]));
    let app = timed(host.manager().get(&key("app"))).await.unwrap();
    assert_eq!(timed(app.state(&INIT)).await.unwrap().status, Status::RUNNING);
    assert_eq!((host.record.exits("pod").len(), host.record.deletes("pod").len()), (1, 1));
    drop(app);
    host.end("app").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_shims_are_loaded_side_by_side() {
    let mut host = Fixture::new(&json!({ "group": "one" }));
    for n in 0..60 {
        host.create(&format!("c{n}")).await.unwrap();
    }
    host.script(&json!({ "group": "one", "calls": { "Connect": { "delay_ms": 400 } } }));
    fs::write(host.bundle("c30").join("bootstrap.json"), "").unwrap();
    let before = Instant::now();
    let report = host.restart().await;
    // One after the other these would take 24 seconds.
    assert!(before.elapsed() < Duration::from_secs(12), "{:?}", before.elapsed());
    assert_eq!((report.loaded.len(), report.dead.len()), (59, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_process_is_not_ended_for_the_sake_of_one_lost_bundle() {
    let mut host = Fixture::new(&json!({ "group": "pod" }));
    host.run("pod").await;
    host.run("app").await;
    host.script(&json!({ "group": "pod", "calls": {
        "State pod": { "refuses": 5 }, "Pids pod": { "refuses": 5 } } }));
    let report = host.restart().await;
    assert_eq!((report.loaded, report.leaked), (vec![key("app")], vec![key("pod")]));
    assert!(alive(host.launched()[0]));
    let app = timed(host.manager().get(&key("app"))).await.unwrap();
    timed(app.state(&INIT)).await.unwrap();
}

/// Not a test of speed, which depends on the machine: run by hand, in release, to read the numbers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: a thousand processes"]
async fn a_thousand_shims() {
    const SHIMS: usize = 1000;
    let mut host = Fixture::new(&good());
    let before = Instant::now();
    for n in 0..SHIMS {
        host.create(&format!("c{n}")).await.unwrap();
    }
    let creating = before.elapsed();
    host.stop_manager().await;
    host.start_manager();
    let before = Instant::now();
    let mut loading = timed(host.manager().load()).await.unwrap();
    timed(loading.ready()).await;
    let ready = before.elapsed();
    let report = timed(loading.finish()).await.unwrap();
    println!("created in {creating:?}, ready in {ready:?}, loaded in {:?}", before.elapsed());
    assert_eq!(report.loaded.len(), SHIMS);
}
