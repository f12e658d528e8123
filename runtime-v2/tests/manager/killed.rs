//! A manager or a shim that is killed at any step: nothing is left over, nothing is lost, and
//! every end is told once.

use std::{fs, time::Duration};

use nix::sys::signal::Signal;
use runtime_proto::{
    events::{TaskDelete, TaskExit},
    task::Status,
    topics::Event,
};
use runtime_v2::{Code, ExecId, ExecOptions, ProcessId};
use serde_json::{Value, json};

use crate::{
    apart::{Apart, Job, is_done, told},
    support::{Fixture, alive, eventually, good, key, signal, timed},
};

const INIT: ProcessId = ProcessId::Init;

pub(crate) fn job(host: &Fixture, calls: &[&str]) -> Job {
    Job {
        home: host.dir.path().into(),
        namespace: "ns".into(),
        runtime: host.path("shim").display().to_string(),
        calls: calls.iter().map(|call| (*call).to_owned()).collect(),
        spec: json!({}),
        rootfs: None,
        binary: None,
    }
}

/// A host on which a manager made these calls and was killed when `reached`; then a good one
/// loaded what it left.
async fn killed(script: &Value, calls: &[&str], reached: impl Fn(&Fixture) -> bool) -> Fixture {
    let mut host = Fixture::without_manager(script);
    let apart = Apart::spawn(&job(&host, calls));
    eventually(&format!("{calls:?} under {script}"), || reached(&host)).await;
    apart.kill();
    host.script(&good());
    host.start_manager();
    host.load().await;
    host
}

/// Exits and deletions of an id, told by whichever manager; the pids of each.
fn ends(host: &Fixture, id: &str) -> (Vec<u32>, Vec<u32>) {
    let of = |topic: &str| {
        let before = told(host.dir.path(), topic, id).into_iter().map(|(pid, _)| pid);
        before.chain(host.record.of(topic, id).into_iter().map(|seen| seen.pid)).collect()
    };
    (of(TaskExit::TOPIC), of(TaskDelete::TOPIC))
}

/// The calls that make a running task, then these.
pub(crate) fn after_start<'a>(calls: &[&'a str]) -> Vec<&'a str> {
    [&["create c1", "start c1"], calls].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_create_that_was_not_asked_for_yet_nothing_is_left() {
    for (script, step) in [
        (json!({ "start": "hangs_early" }), "start c1 params"),
        (json!({ "start": "hangs" }), "launched"),
        (json!({ "calls": { "Create": { "hangs": true } } }), "v3 Create c1"),
        (
            json!({ "calls": { "Create": { "refuses": 2 }, "Delete": { "hangs": true } } }),
            "v3 Delete c1",
        ),
        (
            json!({ "calls": { "Create": { "refuses": 2 }, "Shutdown": { "hangs": true } } }),
            "v3 Shutdown c1",
        ),
        (json!({ "calls": { "Create": { "dies": true } }, "delete": "hangs" }), "delete c1"),
    ] {
        let reached = |host: &Fixture| host.calls().iter().any(|call| call.starts_with(step));
        let host = killed(&script, &["create c1"], reached).await;
        host.assert_clean().await;
        assert_eq!(ends(&host, "c1"), (vec![], vec![]), "nothing ran: {script}");
        host.run("c1").await;
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_made_is_found_though_its_maker_never_heard_so() {
    for (method, status) in [("Create", Status::CREATED), ("Start", Status::RUNNING)] {
        let script = json!({ "calls": { method: { "hangs_after": true } } });
        let held = format!("held {method} c1");
        let reached = |host: &Fixture| host.count(&held) == 1;
        let host = killed(&script, &["create c1", "start c1"], reached).await;
        let task = timed(host.manager().get(&key("c1"))).await.unwrap();
        let state = timed(task.state(&INIT)).await.unwrap();
        assert_eq!((state.status, state.pid), (status, task.pid()));
        assert_ne!(task.pid(), 0);
        host.end("c1").await;
        host.assert_clean().await;
        assert_eq!(ends(&host, "c1"), (vec![task.pid()], vec![task.pid()]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_outlives_the_manager_that_asked_for_it() {
    for (call, after) in [("Exec", false), ("Exec", true), ("Start", true)] {
        let how = if after { "hangs_after" } else { "hangs" };
        let mut host = Fixture::without_manager(&good());
        let apart = Apart::spawn(&job(&host, &after_start(&["wait c1"])));
        eventually("started", || is_done(host.dir.path(), "start c1")).await;
        apart.kill();
        host.script(&json!({ "calls": { call: { how: true } } }));
        let apart = Apart::spawn(&job(&host, &["exec c1 e1"]));
        let step = if after { format!("held {call} c1") } else { format!("v3 {call} c1") };
        eventually(&step, || host.count(&step) == 1).await;
        apart.kill();
        host.script(&good());
        host.start_manager();
        assert_eq!(host.load().await.loaded, [key("c1")]);
        let task = timed(host.manager().get(&key("c1"))).await.unwrap();
        assert_eq!(timed(task.state(&INIT)).await.unwrap().status, Status::RUNNING);
        let exec = ExecId::new("e1").unwrap();
        let process = ProcessId::from(exec.clone());
        if after {
            let pid = timed(task.state(&process)).await.unwrap().pid;
            timed(task.kill(&process, 9, false)).await.unwrap();
            assert_eq!(timed(task.delete_exec(&exec)).await.unwrap().pid, pid);
        }
        // Its id is free, whatever became of it.
        timed(task.exec(&exec, ExecOptions::default())).await.unwrap();
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_completed_by_the_next_manager() {
    let calls = after_start(&["kill c1", "delete c1"]);
    for (script, step) in [
        (json!({ "calls": { "Delete": { "hangs_after": true } } }), "held Delete c1"),
        (json!({ "calls": { "Shutdown": { "hangs": true } } }), "v3 Shutdown c1"),
        (json!({ "obeys_shutdown": false }), "v3 Shutdown c1"),
        (json!({ "calls": { "Shutdown": { "dies": true } } }), "v3 Shutdown c1"),
        (json!({ "calls": { "Delete": { "refuses_after": 5 } }, "delete": "hangs" }), "delete c1"),
        (json!({ "calls": { "Delete": { "dies_after": true } }, "delete": "hangs" }), "delete c1"),
    ] {
        let host = killed(&script, &calls, |host: &Fixture| host.count(step) == 1).await;
        host.assert_clean().await;
        let (exits, deletes) = ends(&host, "c1");
        assert_eq!((exits.len(), deletes.len()), (1, 1), "{script}");
        assert_eq!(exits, deletes, "{script}");
        assert_eq!(timed(host.manager().get(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_the_shim_never_got_to_is_for_the_caller_to_repeat() {
    let script = json!({ "calls": { "Delete": { "hangs": true } } });
    let calls = after_start(&["kill c1", "delete c1"]);
    let host = killed(&script, &calls, |host: &Fixture| host.count("v3 Delete c1") == 1).await;
    assert_eq!(timed(host.manager().delete(&key("c1"))).await.unwrap().status, 137);
    host.assert_clean().await;
    let (exits, deletes) = ends(&host, "c1");
    assert_eq!((exits.len(), deletes.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_killed_shim_is_told_though_the_manager_dies_before_it_could() {
    for (step, hold) in [("delete c1", false), ("held", true)] {
        let mut host = Fixture::without_manager(&good());
        let apart = Apart::spawn(&job(&host, &after_start(&[])));
        eventually("started", || is_done(host.dir.path(), "start c1")).await;
        if hold {
            fs::write(host.path("hold"), "").unwrap();
        } else {
            host.script(&json!({ "delete": "hangs" }));
        }
        signal(host.launched()[0], Signal::SIGKILL);
        eventually(step, || host.path("held").exists() || (!hold && host.count(step) == 1)).await;
        apart.kill();
        host.script(&json!({ "delete_pid": 4242 }));
        host.start_manager();
        assert_eq!(host.load().await.dead, [key("c1")], "{step}");
        host.assert_clean().await;
        assert_eq!(ends(&host, "c1"), (vec![4242], vec![4242]), "{step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_whose_manager_died_before_it_was_handed_on_is_not_taken_for_told() {
    let mut host = Fixture::without_manager(&good());
    fs::write(host.path("hold"), "").unwrap();
    let apart = Apart::spawn(&job(&host, &after_start(&["kill c1"])));
    eventually("held", || host.path("held").exists()).await;
    apart.kill();
    host.start_manager();
    assert_eq!(host.load().await.loaded, [key("c1")]);
    assert_eq!(timed(host.manager().delete(&key("c1"))).await.unwrap().status, 137);
    host.assert_clean().await;
    let (exits, deletes) = ends(&host, "c1");
    assert_eq!((exits.len(), deletes.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_together_manager_and_shim_leave_nothing_and_the_end_is_told() {
    let mut host = Fixture::without_manager(&json!({ "delete_pid": 4242 }));
    let apart = Apart::spawn(&job(&host, &after_start(&[])));
    eventually("started", || is_done(host.dir.path(), "start c1")).await;
    apart.kill();
    let shim = host.launched()[0];
    signal(shim, Signal::SIGKILL);
    eventually("dead", || !alive(shim)).await;
    host.start_manager();
    assert_eq!(host.load().await.dead, [key("c1")]);
    host.assert_clean().await;
    assert_eq!(ends(&host, "c1"), (vec![4242], vec![4242]));
}

/// The next manager is here already, and so begins sooner than one in a process of its own could.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_a_manager_leaves_what_the_next_one_can_go_on_with() {
    const ROUNDS: u64 = 25;
    let ids = ["a", "b", "c"];
    let mut host = Fixture::without_manager(&good());
    for round in 0..ROUNDS {
        let cycles = ids.map(|id| format!("cycle {id}"));
        let apart = Apart::spawn(&job(&host, &cycles.each_ref().map(String::as_str)));
        let before = host.calls().len();
        eventually("at work", || host.calls().len() > before + 2).await;
        // Not for anything to happen: the moment of the kill is what varies.
        tokio::time::sleep(Duration::from_micros(round * 1700)).await;
        apart.kill();
        host.start_manager();
        host.load().await;
        for task in host.manager().list(None) {
            let state = timed(task.state(&INIT)).await.unwrap();
            assert_eq!(state.pid, task.pid(), "round {round}");
            // One that has ended needs no kill.
            let _ = timed(task.kill(&INIT, 9, false)).await;
            timed(host.manager().delete(task.key())).await.unwrap();
        }
        timed(host.manager().settled()).await;
        host.assert_clean().await;
        host.stop_manager().await;
    }
    for id in ids {
        let (exits, deletes) = ends(&host, id);
        for (what, mut pids) in [("exit", exits), ("delete", deletes)] {
            // One that was handed on when its manager was killed may not have been noted.
            pids.sort_unstable();
            let more_than_twice = pids.windows(3).any(|told| told[0] == told[2]);
            assert!(!more_than_twice, "{id}: an {what} was told more than twice: {pids:?}");
        }
    }
}

/// What is left to tell of a task whose shim died in one of its calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_dies_in_any_call_costs_its_task_and_nothing_else() {
    let methods = ["Start", "State", "Exec", "Kill", "Pids", "Wait", "Delete", "Shutdown"];
    for method in methods {
        for how in ["dies", "dies_after"] {
            let host = Fixture::new(&good());
            let neighbour = host.run("other").await;
            let task = host.create("c1").await.unwrap();
            host.script(&json!({ "calls": { format!("{method} c1"): { how: true } } }));
            let _ = timed(task.start(&INIT)).await;
            let _ = timed(task.state(&INIT)).await;
            let _ = timed(task.exec(&ExecId::new("e1").unwrap(), ExecOptions::default())).await;
            let _ = timed(task.pids()).await;
            let _ = timed(task.kill(&INIT, 9, false)).await;
            let _ = timed(task.wait(&INIT)).await;
            let _ = timed(host.manager().delete(&key("c1"))).await;
            eventually(&format!("{method} {how}: forgotten"), || {
                host.manager().list(None).len() == 1
            })
            .await;
            timed(host.manager().settled()).await;
            let (exits, deletes) = ends(&host, "c1");
            assert_eq!((exits, deletes), (vec![task.pid()], vec![task.pid()]), "{method} {how}");
            timed(neighbour.state(&INIT)).await.unwrap();
            host.end("other").await;
            host.assert_clean().await;
        }
    }
}
