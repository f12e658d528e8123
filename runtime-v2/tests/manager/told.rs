//! Each end is told once, however late, or never, a shim tells it itself.

use std::fs;

use nix::sys::signal::Signal;
use protobuf::Message;
use runtime_proto::{
    events::{ForwardRequest, SERVICE, TaskDelete, TaskExit},
    topics::Event,
    types::Timestamp,
};
use runtime_v2::{Code, ProcessId, events::envelope};
use serde_json::{Value, json};

use crate::{
    apart::{Apart, told},
    killed::{after_start, job},
    support::{Fixture, eventually, good, key, signal, timed},
};

const INIT: ProcessId = ProcessId::Init;

/// Shims that tell both ends, but one or both of them only when the deletion is answered.
fn late(millis: u64) -> [Value; 2] {
    [json!({ "tells": { "exit_last": millis } }), json!({ "tells": { "both_late": millis } })]
}

fn assert_told_once(host: &Fixture, id: &str, end: (u32, u32), what: &str) {
    let pairs = |topic| -> Vec<_> {
        let before = told(host.dir.path(), topic, id).into_iter();
        let seen = host.record.of(topic, id).into_iter();
        before.chain(seen.map(|seen| (seen.pid, seen.status))).collect()
    };
    assert_eq!(pairs(TaskExit::TOPIC), [end], "exit: {what}");
    assert_eq!(pairs(TaskDelete::TOPIC), [end], "deletion: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shim_tells_behind_its_answer_is_waited_for() {
    for script in late(700) {
        let host = Fixture::new(&script);
        let pid = host.run("c1").await.pid();
        host.end("c1").await;
        host.assert_clean().await;
        assert_told_once(&host, "c1", (pid, 137), &script.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shim_never_tells_is_told_in_its_place() {
    let host = Fixture::new(&json!({ "tells": "never" }));
    let pid = host.run("c1").await.pid();
    host.end("c1").await;
    host.assert_clean().await;
    assert_told_once(&host, "c1", (pid, 137), "never");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_ran_has_no_exit_to_wait_for() {
    let host = Fixture::new(&good());
    host.create("c1").await.unwrap();
    timed(host.manager().delete(&key("c1"))).await.unwrap();
    host.assert_clean().await;
    assert_eq!((host.record.exits("c1").len(), host.record.deletes("c1").len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_dies_between_the_two_leaves_neither_untold() {
    for script in late(3_600_000) {
        let mut dying = script.clone();
        dying["calls"] = json!({ "Delete": { "dies_after": true } });
        let host = Fixture::new(&dying);
        let task = host.run("c1").await;
        timed(task.kill(&INIT, 9, false)).await.unwrap();
        timed(host.manager().delete(&key("c1"))).await.unwrap();
        host.assert_clean().await;
        assert_told_once(&host, "c1", (task.pid(), 137), &dying.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_manager_hears_what_the_killed_one_did_not() {
    let [exit, both] = late(700);
    let [no_exit, neither] = late(3_600_000);
    // Of what nobody told, the status is not known.
    for (mut script, status) in [(exit, 137), (both, 137), (no_exit, 137), (neither, 255)] {
        script["calls"] = json!({ "Delete": { "hangs_after": true } });
        let mut host = Fixture::without_manager(&script);
        let apart = Apart::spawn(&job(&host, &after_start(&["kill c1", "delete c1"])));
        eventually("held", || host.count("held Delete c1") == 1).await;
        apart.kill();
        // As the OCI runtime does.
        let pid = 0x4000_0000 + (u32::try_from(host.launched()[0]).unwrap() << 8);
        fs::write(host.bundle("c1").join("init.pid"), pid.to_string()).unwrap();
        host.script(&json!({ "tells": script["tells"] }));
        host.start_manager();
        assert_eq!(host.load().await.leaked, [key("c1")], "{script}");
        host.assert_clean().await;
        assert_told_once(&host, "c1", (pid, status), &script.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_told_while_a_load_looks_is_not_told_again() {
    let mut host = Fixture::new(&good());
    let task = host.run("c1").await;
    host.stop_manager().await;
    host.script(&json!({ "calls": { "State c1": { "until": "go" } } }));
    host.start_manager();
    let loading = timed(host.manager().load()).await.unwrap();
    eventually("looked at", || host.count("v3 State c1") == 1).await;
    host.observe_exit("c1", task.pid(), 9).await;
    fs::write(host.path("go"), "").unwrap();
    assert_eq!(timed(loading.finish()).await.unwrap().loaded, [key("c1")]);
    host.script(&good());
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    assert_eq!(host.record.exits("c1").len(), 0, "it was shown to the manager alone");
    assert_eq!(host.record.deletes("c1").len(), 1);
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_of_an_earlier_task_of_the_id_is_not_that_of_the_next() {
    let host = Fixture::new(&good());
    let earlier = host.run("c1").await.pid();
    host.end("c1").await;
    let pid = host.run("c1").await.pid();
    host.observe_exit("c1", earlier, 9).await;
    signal(*host.launched().last().unwrap(), Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    let exits: Vec<u32> = host.record.exits("c1").iter().map(|exit| exit.pid).collect();
    assert_eq!(exits, [earlier, pid]);
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_handed_on_as_its_shim_dies_is_not_told_again() {
    let host = Fixture::new(&json!({ "tells": "never" }));
    let pid = host.run("c1").await.pid();
    host.record.holds.send_replace(true);
    let stream = tokio::net::UnixStream::connect(host.path("events")).await.unwrap();
    let connection = runtime_v2::ttrpc::Connection::new(stream, Vec::new());
    let telling = tokio::spawn({
        let connection = connection.clone();
        async move { connection.call(SERVICE, "Forward", exit_event("c1", pid, 3), None).await }
    });
    eventually("handed on", || host.record.exits("c1").len() == 1).await;
    connection.close();
    timed(telling).await.unwrap().unwrap_err();
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("cleaned up behind", || host.count("delete c1") == 1).await;
    host.record.holds.send_replace(false);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    assert_told_once(&host, "c1", (pid, 3), "by a shim that did not wait for the answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shim_tells_again_is_not_handed_on_again() {
    let host = Fixture::new(&good());
    let pid = host.run("c1").await.pid();
    let stream = tokio::net::UnixStream::connect(host.path("events")).await.unwrap();
    let connection = runtime_v2::ttrpc::Connection::new(stream, Vec::new());
    // The answer to the first may have been lost.
    for _ in 0..2 {
        let told = connection.call(SERVICE, "Forward", exit_event("c1", pid, 3), None);
        timed(told).await.unwrap();
    }
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    assert_told_once(&host, "c1", (pid, 3), "twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_creation_that_failed_has_told_is_not_the_next_ones() {
    let host = Fixture::new(
        &json!({ "tells": "never", "calls": { "Create": { "until": "go", "refuses": 2 } } }),
    );
    let (manager, options) = (host.manager().clone(), host.options());
    let failing = tokio::spawn(async move { manager.create(key("c1"), options).await });
    eventually("asked to create", || host.count("v3 Create c1") == 1).await;
    // Of what came to nothing there is no pid to tell, and what has none may be anybody's.
    let mut deletion = TaskDelete::new();
    (deletion.container_id, deletion.exit_status) = ("c1".into(), 1);
    host.observe(&deletion).await;
    fs::write(host.path("go"), "").unwrap();
    timed(failing).await.unwrap().unwrap_err();
    host.script(&good());
    let pid = host.run("c1").await.pid();
    signal(*host.launched().last().unwrap(), Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    assert_told_once(&host, "c1", (pid, 137), "behind a creation that failed");
    host.assert_clean().await;
}

/// As a shim forwards an exit.
fn exit_event(id: &str, pid: u32, status: u32) -> Vec<u8> {
    let mut exit = TaskExit::new();
    (exit.container_id, exit.id) = (id.into(), id.into());
    (exit.pid, exit.exit_status) = (pid, status);
    exit.exited_at = Some(Timestamp::now()).into();
    let mut request = ForwardRequest::new();
    request.envelope = Some(envelope(&key("any").namespace, &exit).unwrap()).into();
    request.write_to_bytes().unwrap()
}

/// The published Rust shim tells so, without saying of which process.
#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_an_exec_is_not_that_of_its_task() {
    let host = Fixture::new(&good());
    let pid = host.run("c1").await.pid();
    let mut deletion = TaskDelete::new();
    (deletion.container_id, deletion.pid) = ("c1".into(), pid + 1);
    host.observe(&deletion).await;
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    assert_told_once(&host, "c1", (pid, 137), "behind the deletion of an exec");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_deletes_what_a_load_is_removing_waits_and_finds_nothing() {
    let mut host = Fixture::new(&good());
    host.create("c1").await.unwrap();
    host.stop_manager().await;
    host.script(&json!({ "calls": {
        "State": { "refuses": 5 }, "Pids": { "refuses": 5 }, "Delete": { "until": "go" } } }));
    host.start_manager();
    let loading = timed(host.manager().load()).await.unwrap();
    eventually("being removed", || host.count("v3 Delete c1") == 1).await;
    let deleting = tokio::spawn({
        let manager = host.manager().clone();
        async move { manager.delete(&key("c1")).await }
    });
    assert_eq!(timed(host.manager().get(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
    fs::write(host.path("go"), "").unwrap();
    assert_eq!(timed(deleting).await.unwrap().unwrap_err().kind(), Code::NotFound);
    assert_eq!(timed(loading.finish()).await.unwrap().leaked, [key("c1")]);
    host.assert_clean().await;
}
