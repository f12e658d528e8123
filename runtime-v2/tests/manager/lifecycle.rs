//! The life of a task, from each era's start answer to nothing left.

use std::{collections::HashMap, fs, time::Duration};

use crate::support::{Fixture, good, key, names, signal, timed};
use runtime_proto::{any, task::Status};
use runtime_v2::{Code, CreateOptions, ExecId, ExecOptions, ProcessId};
use serde_json::json;

const INIT: ProcessId = ProcessId::Init;

#[tokio::test(flavor = "multi_thread")]
async fn a_task_lives_and_leaves_nothing() {
    let host = Fixture::new(&good());
    let task = host.create("c1").await.unwrap();
    assert_ne!(task.pid(), 0);
    assert_eq!(timed(task.state(&INIT)).await.unwrap().status, Status::CREATED);
    assert_eq!(timed(task.start(&INIT)).await.unwrap(), task.pid());
    assert_eq!(host.manager().list(None).len(), 1);
    assert_eq!(timed(task.pids()).await.unwrap()[0].pid, task.pid());
    let waiting = tokio::spawn({
        let task = task.clone();
        async move { task.wait(&INIT).await }
    });
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    let exit = timed(waiting).await.unwrap().unwrap();
    assert_eq!((exit.pid, exit.status), (task.pid(), 137));
    let state = timed(task.state(&INIT)).await.unwrap();
    assert_eq!((state.status, state.exit.unwrap().status), (Status::STOPPED, 137));
    let exit = timed(host.manager().delete(&key("c1"))).await.unwrap();
    assert_eq!((exit.pid, exit.status), (task.pid(), 137));
    host.assert_clean().await;
    assert_eq!(host.record.exits("c1").len(), 1);
    assert_eq!(host.record.deletes("c1").len(), 1);
    assert_eq!(host.count("delete c1"), 0, "the shim did it all, its binary is not needed");
    assert_eq!(host.count("v3 Connect c1"), 0, "the pid is that of Create");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_reaches_the_shim() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    let exec = ExecId::new("e1").unwrap();
    let process = ProcessId::from(exec.clone());
    timed(task.exec(&exec, ExecOptions::default())).await.unwrap();
    assert_ne!(timed(task.start(&process)).await.unwrap(), task.pid());
    timed(task.resize_pty(&process, 80, 25)).await.unwrap();
    timed(task.close_io(&process)).await.unwrap();
    timed(task.kill(&process, 15, false)).await.unwrap();
    assert_eq!(timed(task.wait(&process)).await.unwrap().status, 143);
    assert_eq!(timed(task.delete_exec(&exec)).await.unwrap().status, 143);
    assert_eq!(timed(task.state(&process)).await.unwrap_err().kind(), Code::NotFound);
    timed(task.pause()).await.unwrap();
    timed(task.resume()).await.unwrap();
    timed(task.checkpoint("/x", None)).await.unwrap();
    let resources = any::raw(any::OCI_LINUX_RESOURCES, b"{}".to_vec());
    timed(task.update(Some(resources), HashMap::new())).await.unwrap();
    let nothing = timed(task.update(None, HashMap::new())).await.unwrap_err();
    assert_eq!(nothing.kind(), Code::InvalidArgument);
    assert_eq!(timed(task.stats()).await.unwrap_err().kind(), Code::NotFound);
    for method in ["ResizePty", "CloseIO", "Pause", "Resume", "Checkpoint", "Update", "Stats"] {
        assert_eq!(host.count(&format!("v3 {method} c1")), 1, "{method}");
    }
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_answer_is_understood() {
    for (answer, version) in
        [("protobuf", 3), ("protobuf", 2), ("json", 3), ("json", 2), ("plain", 2)]
    {
        let host = Fixture::new(&json!({ "answer": answer, "version": version }));
        let task = host.run("c1").await;
        assert_eq!(task.shim().version(), version, "{answer}");
        let file = fs::read_to_string(host.bundle("c1").join("bootstrap.json")).unwrap();
        let address = task.shim().address();
        let wanted = format!(r#"{{"version":{version},"address":"{address}","protocol":"ttrpc"}}"#);
        assert_eq!(file, wanted);
        assert_eq!(host.count(&format!("v{version} Create c1")), 1);
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warning_on_stderr_is_no_failure() {
    let host = Fixture::new(&json!({ "start": "warns", "answer": "json" }));
    host.run("c1").await;
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_of_start_is_what_the_binary_s_era_reads() {
    let go =
        |version: &str| format!("shim:\n  Version:  {version}\n  Revision: x\n  Go version: go1\n");
    for (printed, form) in [
        (go("1.6.20~ds1"), "options"),
        (go("1.7.34"), "options"),
        (go("2.1.9"), "options"),
        (go("2.3.4"), "params"),
        ("something else".into(), "params"),
    ] {
        let host = Fixture::new(&json!({ "printed_version": printed }));
        let options = CreateOptions {
            runtime_options: Some(any::raw("containerd.runc.v1.Options", b"\x1a\x02/x".to_vec())),
            ..host.options()
        };
        timed(host.manager().create(key("c1"), options)).await.unwrap();
        assert_eq!(host.count(&format!("start c1 {form}")), 1, "{printed}: {:?}", host.calls());
    }
    let host = Fixture::new(&json!({ "printed_version": go("1.6.20") }));
    host.create("c1").await.unwrap();
    assert_eq!(host.count("start c1 nothing"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn abstract_sockets_of_old_shims_are_reached() {
    let host = Fixture::new(&json!({ "abstract_socket": true, "answer": "plain", "version": 2 }));
    host.run("c1").await;
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_free_again_and_unknown_ones_are_not_found() {
    let host = Fixture::new(&good());
    for _ in 0..3 {
        host.run("c1").await;
        host.end("c1").await;
    }
    host.assert_clean().await;
    assert_eq!(timed(host.manager().get(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
    assert_eq!(timed(host.manager().delete(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_shim_costs_a_call_its_deadline_and_nothing_more() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    let pid = host.launched()[0];
    signal(pid, nix::sys::signal::Signal::SIGSTOP);
    for _ in 0..50 {
        let asked = task.clone().within(Duration::from_millis(5));
        let error = timed(asked.state(&INIT)).await.unwrap_err();
        assert_eq!(error.kind(), Code::DeadlineExceeded);
        assert!(error.to_string().contains("ns/c1"), "{error}");
    }
    signal(pid, nix::sys::signal::Signal::SIGCONT);
    assert_eq!(timed(task.state(&INIT)).await.unwrap().status, Status::RUNNING);
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_too_large_fails_alone() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    let spec = |size| ExecOptions {
        spec: Some(any::raw(any::OCI_PROCESS, vec![b'x'; size])),
        ..ExecOptions::default()
    };
    let error = timed(task.exec(&ExecId::new("e1").unwrap(), spec(5 << 20))).await.unwrap_err();
    assert_eq!(error.kind(), Code::ResourceExhausted);
    timed(task.exec(&ExecId::new("e1").unwrap(), spec(3 << 20))).await.unwrap();
    assert_eq!(timed(task.state(&INIT)).await.unwrap().status, Status::RUNNING);
    host.end("c1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shim_binary_is_found_by_the_name_of_the_runtime() {
    let host = Fixture::without_manager(&good());
    std::os::unix::fs::symlink(
        env!("CARGO_BIN_EXE_fakeshim"),
        host.path("containerd-shim-fake-v9"),
    )
    .unwrap();
    let mut config = host.config();
    config.search = vec![host.dir.path().into()];
    let environment = runtime_v2::Environment {
        containers: host.store.clone(),
        sandboxes: host.store.clone(),
        events: host.record.clone(),
        mounts: host.mounts.clone(),
    };
    let manager = runtime_v2::TaskManager::new(config, environment).unwrap();
    let options = |runtime: &str| CreateOptions { runtime: runtime.into(), ..host.options() };
    timed(manager.create(key("c1"), options("io.containerd.fake.v9"))).await.unwrap();
    let noted = fs::read_to_string(host.bundle("c1").join("shim-binary-path")).unwrap();
    assert_eq!(noted, host.path("containerd-shim-fake-v9").display().to_string());
    for bad in ["", "a", "..", "x/y.z", "./shim"] {
        let error = timed(manager.create(key("c2"), options(bad))).await.unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{bad:?}: {error}");
    }
    let error =
        timed(manager.create(key("c2"), options("io.containerd.none.v1"))).await.unwrap_err();
    assert_eq!(error.kind(), Code::NotFound);
    assert_eq!(names(&host.path("state/ns")).len(), 1, "nothing was made for the bad ones");
    timed(manager.delete(&key("c1"))).await.unwrap();
}
