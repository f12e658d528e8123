//! Loading: the living go on, the dead are cleaned up, and nobody waits for the silent.

use std::{
    fs,
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use runtime_proto::task::Status;
use runtime_v2::{Code, ProcessId};
use serde_json::json;

use crate::support::{Fixture, alive, eventually, good, key, names, signal, timed};

const INIT: ProcessId = ProcessId::Init;

/// A bundle whose shim is at this address.
fn leave_bundle(host: &Fixture, id: &str, address: &str) {
    let bundle = host.bundle(id);
    fs::create_dir_all(bundle.join("rootfs")).unwrap();
    fs::create_dir_all(host.path("root/ns").join(id)).unwrap();
    fs::write(bundle.join("shim-binary-path"), host.path("shim").display().to_string()).unwrap();
    let text = format!(r#"{{"version":3,"address":"{address}","protocol":"ttrpc"}}"#);
    fs::write(bundle.join("bootstrap.json"), text).unwrap();
}

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
async fn hundreds_of_dead_sockets_take_no_time() {
    let mut host = Fixture::without_manager(&json!({ "delete_pid": 4242 }));
    let refused = host.path("refused");
    drop(UnixListener::bind(&refused).unwrap());
    for n in 0..50 {
        leave_bundle(&host, &format!("missing{n}"), "unix:///nonexistent/s");
        leave_bundle(&host, &format!("refused{n}"), &format!("unix://{}", refused.display()));
    }
    host.start_manager();
    let mut loading = timed(host.manager().load()).await.unwrap();
    timed(loading.ready()).await;
    let report = timed(loading.finish()).await.unwrap();
    assert_eq!(report.dead.len(), 100);
    assert!(host.left_over().is_empty());
    for id in ["missing0", "refused49"] {
        let (exits, deletes) = (host.record.exits(id), host.record.deletes(id));
        assert_eq!((exits.len(), deletes.len()), (1, 1));
        assert_eq!((exits[0].pid, exits[0].status), (4242, 137));
    }
    assert!(!refused.exists(), "the dead socket goes too");
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
async fn damaged_files_are_a_dead_shim() {
    let large = vec![0xff; 1 << 20];
    let damages: [&[u8]; 5] = [b"", b"{\"version\":3,\"add", b"{}", &large, b"\0\0\0"];
    for damage in damages {
        let mut host = Fixture::new(&json!({ "delete_pid": 77 }));
        host.run("bad").await;
        let good = host.run("good").await.pid();
        fs::write(host.bundle("bad").join("bootstrap.json"), damage).unwrap();
        let report = host.restart().await;
        assert_eq!((report.loaded, report.dead), (vec![key("good")], vec![key("bad")]));
        assert_eq!(names(&host.path("state/ns")).into_iter().collect::<Vec<_>>(), ["good"]);
        assert_eq!(host.living().len(), 1, "the shim nobody can reach is ended");
        assert_eq!(host.record.exits("bad").len(), 1);
        assert_eq!(host.manager().list(None)[0].pid(), good);
        host.end("good").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_bundle_is_left_alone_and_what_is_empty_goes() {
    let mut host = Fixture::without_manager(&good());
    let state = host.path("state");
    for dir in ["ns/.half", "ns/.other", "ns/not ok", ".hidden/c1", "ns/empty"] {
        fs::create_dir_all(state.join(dir)).unwrap();
    }
    fs::write(state.join("ns/.half/config.json"), "").unwrap();
    fs::write(state.join("file"), "").unwrap();
    fs::write(state.join("ns/file"), "").unwrap();
    for dir in ["ns/gone", "ns/.half", "other/gone"] {
        fs::create_dir_all(host.path("root").join(dir)).unwrap();
    }
    host.start_manager();
    let report = host.load().await;
    assert_eq!(report.dead, [key("empty")]);
    let left: Vec<_> = names(&state.join("ns")).into_iter().collect();
    assert_eq!(left, [".other", "file", "not ok"]);
    assert!(state.join(".hidden/c1").exists());
    assert!(names(&host.path("root/ns")).is_empty());
    assert!(names(&host.path("root/other")).is_empty());
    assert!(host.record.all().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_that_has_vanished_matters_only_to_the_dead() {
    let mut host = Fixture::new(&good());
    host.run("alive").await;
    host.run("dead").await;
    let dead = host.launched()[1];
    host.stop_manager().await;
    signal(dead, Signal::SIGKILL);
    eventually("dead", || !alive(dead)).await;
    fs::rename(host.path("shim"), host.path("moved")).unwrap();
    host.start_manager();
    let report = host.load().await;
    assert_eq!((report.loaded, report.dead), (vec![key("alive")], vec![key("dead")]));
    assert!(!host.bundle("dead").exists());
    host.end("alive").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_of_a_bundle_outlives_a_change_of_path() {
    let mut host = Fixture::new(&good());
    host.run("c1").await;
    let report = host.restart().await;
    assert_eq!(report.loaded, [key("c1")]);
    let task = timed(host.manager().get(&key("c1"))).await.unwrap();
    assert_eq!(task.shim().binary(), Some(host.path("shim").as_path()));
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    assert_eq!(host.count("delete c1"), 1);
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_does_not_say_its_binary_asks_the_records() {
    let mut host = Fixture::new(&good());
    host.run("c1").await;
    host.store.insert_container(key("c1"), host.path("shim").display().to_string());
    host.stop_manager().await;
    fs::remove_file(host.bundle("c1").join("shim-binary-path")).unwrap();
    host.start_manager();
    assert_eq!(host.load().await.loaded, [key("c1")]);
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    assert_eq!(host.count("delete c1"), 1);
    host.assert_clean().await;
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

/// Records that cannot be read, or never answer.
struct BadRecords {
    hang: bool,
}

impl BadRecords {
    async fn fail<T>(&self) -> runtime_v2::Result<T> {
        if self.hang {
            std::future::pending::<()>().await;
        }
        Err(runtime_v2::Error::new(Code::Unavailable, "the records are elsewhere"))
    }
}

#[async_trait::async_trait]
impl runtime_v2::ContainerStore for BadRecords {
    async fn runtime(&self, _: &runtime_v2::Key) -> runtime_v2::Result<Option<String>> {
        self.fail().await
    }
}

#[async_trait::async_trait]
impl runtime_v2::SandboxStore for BadRecords {
    async fn contains(&self, _: &runtime_v2::Key) -> runtime_v2::Result<bool> {
        self.fail().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_fail_cost_no_container() {
    for hang in [false, true] {
        let mut host = Fixture::new(&good());
        host.run("task").await;
        host.run("noteless").await;
        host.run("idle").await;
        host.stop_manager().await;
        host.script(&json!({ "calls": {
            "State idle": { "refuses": 5 }, "Pids idle": { "refuses": 5 } } }));
        fs::remove_file(host.bundle("noteless").join("shim-binary-path")).unwrap();
        let records = std::sync::Arc::new(BadRecords { hang });
        let environment = runtime_v2::Environment {
            containers: records.clone(),
            sandboxes: records,
            events: host.record.clone(),
        };
        let manager = runtime_v2::TaskManager::new(host.config(), environment).unwrap();
        let report = timed(timed(manager.load()).await.unwrap().finish()).await.unwrap();
        assert_eq!(report.loaded, [key("idle"), key("task")], "hang: {hang}");
        assert_eq!(report.kept, [key("noteless")]);
        assert_eq!(host.living().len(), 3);
        assert!(host.bundle("noteless").join("bootstrap.json").exists());
        assert!(!host.calls().iter().any(|call| call.starts_with("delete")));
    }
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
