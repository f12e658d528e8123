//! Loading what is dead, damaged, or not said: bundles without a shim, and what is known only in part.

use std::{fs, os::unix::net::UnixListener};

use nix::sys::signal::Signal;
use runtime_v2::{Code, CreateOptions, ProcessId};
use serde_json::json;

use crate::support::{Fixture, alive, eventually, good, key, names, signal, timed};

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
async fn the_last_container_takes_the_shim_of_a_deleted_sandbox_along() {
    let mut host = Fixture::new(&good());
    host.store.insert_sandbox(key("pod"));
    host.run("pod").await;
    let options = CreateOptions { sandbox: Some("pod".to_owned()), ..host.options() };
    let task = timed(host.manager().create(key("c1"), options)).await.unwrap();
    timed(task.start(&ProcessId::Init)).await.unwrap();
    host.end("pod").await;
    assert_eq!(host.living().len(), 1, "the shim serves the other container still");
    // It lives, and says that it does not know the container; nobody else could end it.
    host.script(&json!({ "calls": { "Connect c1": { "refuses": 5 } }, "delete_pid": 77 }));
    let report = host.restart().await;
    assert_eq!(report.dead, [key("c1")]);
    eventually("ended", || host.living().is_empty()).await;
    host.assert_clean().await;
    assert_eq!(host.record.exits("c1").len(), 1);
    assert_eq!(host.record.deletes("c1").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_bundle_is_left_alone_and_what_is_empty_goes() {
    let mut host = Fixture::without_manager(&good());
    let state = host.path("state");
    for dir in ["ns/.half", "ns/.other", "ns/not ok", ".hidden/c1", "ns/empty"] {
        fs::create_dir_all(state.join(dir)).unwrap();
    }
    fs::write(state.join("ns/.half/config.json"), "").unwrap();
    fs::create_dir(state.join("ns/.emptied")).unwrap();
    fs::write(state.join("ns/.other/theirs"), "").unwrap();
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
            mounts: std::sync::Arc::new(runtime_v2::ShimMounts),
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

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_is_not_ended_whose_other_bundle_cannot_be_judged() {
    let mut host = Fixture::new(&json!({ "group": "pod" }));
    let address = host.run("pause").await.shim().address().to_owned();
    let pid = host.run("app").await.pid();
    host.stop_manager().await;
    let shim = host.launched()[0];
    // The task is deleted for a manager that did not live to hear of it.
    tell(&address, "Kill", "pause").await;
    tell(&address, "Delete", "pause").await;
    fs::remove_file(host.bundle("app").join("shim-binary-path")).unwrap();
    let environment = runtime_v2::Environment {
        containers: std::sync::Arc::new(BadRecords { hang: false }),
        sandboxes: host.store.clone(),
        events: host.record.clone(),
        mounts: host.mounts.clone(),
    };
    let manager = runtime_v2::TaskManager::new(host.config(), environment).unwrap();
    let report = timed(timed(manager.load()).await.unwrap().finish()).await.unwrap();
    assert_eq!((report.leaked, report.kept), (vec![key("pause")], vec![key("app")]));
    assert!(alive(shim), "it has the other container");
    drop(manager);
    host.store.insert_container(key("app"), host.path("shim").display().to_string());
    host.start_manager();
    assert_eq!(host.load().await.loaded, [key("app")]);
    assert_eq!(host.manager().list(None)[0].pid(), pid);
    host.end("app").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_task_that_could_not_be_judged_is_told_before_the_next_of_its_id() {
    let mut host = Fixture::new(&good());
    let pid = host.run("c1").await.pid();
    let shim = host.launched()[0];
    host.stop_manager().await;
    let noted = host.bundle("c1").join("shim-binary-path");
    let binary = fs::read_to_string(&noted).unwrap();
    fs::remove_file(&noted).unwrap();
    let environment = runtime_v2::Environment {
        containers: std::sync::Arc::new(BadRecords { hang: false }),
        sandboxes: host.store.clone(),
        events: host.record.clone(),
        mounts: host.mounts.clone(),
    };
    host.start_manager_in(environment);
    assert_eq!(host.load().await.kept, [key("c1")]);
    fs::write(&noted, binary).unwrap();
    fs::write(host.bundle("c1").join("init.pid"), pid.to_string()).unwrap();
    let error = host.create("c1").await.unwrap_err();
    assert_eq!(error.kind(), Code::AlreadyExists, "{error}");
    assert!(host.record.exits("c1").is_empty());
    signal(shim, Signal::SIGKILL);
    eventually("dead", || !alive(shim)).await;
    let next = host.run("c1").await.pid();
    let told = |seen: Vec<crate::support::Seen>| -> Vec<u32> {
        seen.iter().map(|seen| seen.pid).collect()
    };
    assert_eq!(
        (told(host.record.exits("c1")), told(host.record.deletes("c1"))),
        (vec![pid], vec![pid])
    );
    host.end("c1").await;
    host.assert_clean().await;
    assert_eq!(
        (told(host.record.exits("c1")), told(host.record.deletes("c1"))),
        (vec![pid, next], vec![pid, next])
    );
}

/// Calls a shim past its manager.
async fn tell(address: &str, method: &str, id: &str) {
    let path = address.strip_prefix("unix://").unwrap();
    let stream = tokio::net::UnixStream::connect(path).await.unwrap();
    let connection = runtime_v2::ttrpc::Connection::new(stream, Vec::new());
    let mut kill = runtime_proto::task::KillRequest::new();
    (kill.id, kill.signal) = (id.into(), 9);
    let payload = protobuf::Message::write_to_bytes(&kill).unwrap();
    connection.call(runtime_proto::task::SERVICE_V3, method, payload, None).await.unwrap();
}
