//! Shims that die: every task they had is cleaned up and reported, once.

use nix::sys::signal::Signal;
use runtime_proto::events::TaskExit;
use runtime_proto::topics::Event;
use runtime_v2::{Code, CreateOptions, ProcessId};
use serde_json::json;

use crate::support::{Fixture, eventually, good, key, signal, timed};

const INIT: ProcessId = ProcessId::Init;

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_of_a_killed_shim_carries_the_pid_and_comes_once() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    let waiting = tokio::spawn({
        let task = task.clone();
        async move { task.wait(&INIT).await }
    });
    eventually("waited for", || host.count("v3 Wait c1") == 1).await;
    signal(host.launched()[0], Signal::SIGKILL);
    let exit = timed(waiting).await.unwrap().unwrap();
    assert_eq!((exit.pid, exit.status), (task.pid(), 137), "those that wait are told too");
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    let exits = host.record.exits("c1");
    assert_eq!(exits.len(), 1);
    assert_eq!((exits[0].pid, exits[0].status), (task.pid(), 137));
    let deletes = host.record.deletes("c1");
    assert_eq!(deletes.len(), 1);
    assert_eq!((deletes[0].pid, deletes[0].status), (task.pid(), 137));
    assert_eq!(host.count("delete c1"), 1);
    assert_eq!(timed(task.state(&INIT)).await.unwrap_err().kind(), Code::NotFound);
    assert_eq!(timed(host.manager().delete(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_that_the_shim_had_published_is_not_published_again() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    timed(task.kill(&INIT, 15, false)).await.unwrap();
    assert_eq!(host.record.exits("c1").len(), 1);
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    assert_eq!(host.record.exits("c1").len(), 1);
    let deletes = host.record.deletes("c1");
    assert_eq!((deletes.len(), deletes[0].status), (1, 143), "the true exit");
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_of_a_shared_shim_is_cleaned_up() {
    for joined in [false, true] {
        let host = Fixture::new(&json!({ "group": "pod" }));
        host.store.insert_sandbox(key("pod"));
        let ids = ["pod", "a", "b", "c"];
        for id in ids {
            let sandbox = (joined && id != "pod").then(|| "pod".to_owned());
            let options = CreateOptions { sandbox, ..host.options() };
            let task = timed(host.manager().create(key(id), options)).await.unwrap();
            timed(task.start(&INIT)).await.unwrap();
        }
        assert_eq!(host.launched().len(), 1);
        signal(host.launched()[0], Signal::SIGKILL);
        eventually("forgotten", || host.manager().list(None).is_empty()).await;
        timed(host.manager().settled()).await;
        for id in ids {
            assert_eq!(host.count(&format!("delete {id}")), 1, "{id}, joined: {joined}");
            assert_eq!(host.record.exits(id).len(), 1);
            assert_eq!(host.record.deletes(id).len(), 1);
        }
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_that_fails_is_still_reported_and_leaves_nothing() {
    let host = Fixture::new(&json!({ "delete": "fails" }));
    let task = host.run("c1").await;
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    let exits = host.record.exits("c1");
    assert_eq!((exits.len(), exits[0].pid, exits[0].status), (1, task.pid(), 255));
    host.assert_clean().await;
}

/// On a slow disk an unmount takes longer than that, and is done all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_that_takes_too_long_is_gone_on_with() {
    let host = Fixture::new(&json!({ "delete": "hangs" }));
    let pid = host.run("c1").await.pid();
    signal(host.launched()[0], Signal::SIGKILL);
    eventually("cleaning up", || host.count("delete c1") == 1).await;
    host.script(&good());
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    let exits = host.record.exits("c1");
    assert_eq!((exits.len(), exits[0].pid, exits[0].status), (1, pid, 137));
    assert_eq!(host.count("delete c1"), 2);
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_and_a_dying_shim_together_report_once() {
    let host = Fixture::new(&good());
    for _ in 0..20 {
        host.run("c1").await;
        let shim = *host.launched().last().unwrap();
        let deleting = tokio::spawn({
            let manager = host.manager().clone();
            async move { manager.delete(&key("c1")).await }
        });
        signal(shim, Signal::SIGKILL);
        let _ = timed(deleting).await.unwrap();
        eventually("forgotten", || host.manager().shims().list(None).is_empty()).await;
        timed(host.manager().settled()).await;
        host.assert_clean().await;
    }
    assert_eq!(host.record.exits("c1").len(), 20);
    assert_eq!(host.record.deletes("c1").len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_normal_life_has_one_exit_and_one_delete() {
    let host = Fixture::new(&good());
    for _ in 0..50 {
        host.run("c1").await;
        host.end("c1").await;
    }
    timed(host.manager().settled()).await;
    assert_eq!(host.record.exits("c1").len(), 50);
    assert_eq!(host.record.deletes("c1").len(), 50);
    let ours = host.record.all().iter().filter(|seen| seen.topic == TaskExit::TOPIC).count();
    assert_eq!(ours, 50);
    host.assert_clean().await;
}
