//! A manager that is killed while a real shim and the OCI runtime are at work for it.

use std::fs;

use runtime_proto::task::Status;
use runtime_v2::{Code, ExecId, ProcessId};

use crate::{
    apart::{Apart, is_done},
    for_each_shim,
    host::{Host, INIT, eventually, timed},
};

pub(crate) const SLEEP: &str = "sleep 1000";

/// An OCI runtime that stops at a step, before or after doing it, says so by a file, and waits for
/// another. It stops once only.
pub(crate) fn stops(host: &Host, step: &str, after: bool) -> String {
    let [mark, go] = ["stopped", "go"].map(|name| host.home().join(name).display().to_string());
    let wait = format!("while [ ! -e {go} ]; do sleep 0.05; done");
    let stop = format!("[ -e {mark} ] || {{ echo > {mark}; {wait}; }}");
    let step = if after {
        format!("*' {step} '*) runc \"$@\" || exit; {stop}; exit 0;;")
    } else {
        format!("*' {step} '*) {stop};;")
    };
    host.script("stopping-runc", &format!("case \"$*\" in {step} esac; exec runc \"$@\""))
}

/// Runs these calls in a manager of its own, with a runtime that stops at a step; kills it there,
/// and loads what it has left.
async fn killed_at(host: &mut Host, calls: &[&str], step: &str, after: bool) {
    host.stop_manager().await;
    let mut job = host.job("c1", SLEEP, calls);
    job.binary = Some(stops(host, step, after));
    let apart = Apart::spawn(&job);
    let mark = host.home().join("stopped");
    eventually(&format!("{}: {step}", host.shim), || mark.exists()).await;
    apart.kill();
    host.start_manager();
    host.load().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_half_made_is_gone() {
    for after in [false, true] {
        for_each_shim("half", move |mut host| async move {
            killed_at(&mut host, &["create c1"], "create", after).await;
            eventually(&format!("{}: nothing is listed", host.shim), || {
                host.manager().list(None).is_empty()
            })
            .await;
            timed(host.manager().settled()).await;
            host.assert_clean().await;
            host.run("c1", SLEEP).await;
            host.end("c1").await;
            host.assert_clean().await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_container_outlives_its_manager_whatever_that_was_doing() {
    for_each_shim("live", |mut host| async move {
        host.stop_manager().await;
        let apart = Apart::spawn(&host.job("c1", SLEEP, &["create c1", "start c1", "exec c1 e1"]));
        eventually(&host.shim, || is_done(host.home(), "exec c1 e1")).await;
        apart.kill();
        host.start_manager();
        assert_eq!(host.load().await.loaded, [host.key("c1")], "{}", host.shim);
        let task = timed(host.manager().get(&host.key("c1"))).await.unwrap();
        let state = timed(task.state(&INIT)).await.unwrap();
        assert_eq!((state.status, state.pid), (Status::RUNNING, task.pid()), "{}", host.shim);
        let exec = ExecId::new("e1").unwrap();
        let process = ProcessId::from(exec.clone());
        assert_eq!(timed(task.state(&process)).await.unwrap().status, Status::RUNNING);
        timed(task.kill(&process, 9, false)).await.unwrap();
        assert_eq!(timed(task.wait(&process)).await.unwrap().status, 137);
        timed(task.delete_exec(&exec)).await.unwrap();
        let pid = task.pid();
        host.end("c1").await;
        host.assert_clean().await;
        let init: Vec<_> = host.exits("c1").into_iter().filter(|exit| exit.0 == pid).collect();
        assert_eq!(
            (init, host.deletes("c1")),
            (vec![(pid, 137)], vec![(pid, 137)]),
            "{}",
            host.shim
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_whose_manager_was_killed_is_not_lost() {
    for after in [false, true] {
        for_each_shim("dele", move |mut host| async move {
            let calls = ["create c1", "start c1", "kill c1", "wait c1", "delete c1"];
            killed_at(&mut host, &calls, "delete", after).await;
            fs::write(host.home().join("go"), "").unwrap();
            // The call that was cut off is the caller's to repeat, until there is no such task.
            eventually_deleted(&host).await;
            timed(host.manager().settled()).await;
            host.assert_clean().await;
            let (mut exits, deletes) = (host.exits("c1"), host.deletes("c1"));
            // A shim that was not answered, because the manager was killed, tells the next one too.
            exits.dedup();
            assert_eq!(
                (exits.len(), deletes.len()),
                (1, 1),
                "{}, {after}: {exits:?} {deletes:?}",
                host.shim
            );
        })
        .await;
    }
}

async fn eventually_deleted(host: &Host) {
    let key = host.key("c1");
    let mut last = None;
    for _ in 0..10 {
        match timed(host.manager().delete(&key)).await {
            Ok(_) => return,
            Err(error) if error.kind() == Code::NotFound => return,
            Err(error) => last = Some(error),
        }
    }
    panic!("{}: {last:?}", host.shim);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_half_made_does_not_come_to_be_later_in_the_shim_of_its_pod() {
    for_each_shim("podh", |mut host| async move {
        if host.is_published() {
            host.leave_out(
                "a_container_that_was_half_made_does_not_come_to_be_later_in_the_shim_of_its_pod",
                "it answers nothing else while it creates",
            );
            return;
        }
        // It knows no pods.
        if host.is_v1() {
            return;
        }
        let pause = host.run_in_group("pause", SLEEP, "pause").await.pid();
        host.stop_manager().await;
        let mut job = host.job("c1", SLEEP, &["create c1"]);
        let spec = host.spec("c1", &["/bin/sh", "-c", SLEEP], Some("pause"));
        job.spec = serde_json::from_slice(&spec.value).unwrap();
        job.binary = Some(stops(&host, "create", false));
        let apart = Apart::spawn(&job);
        let mark = host.home().join("stopped");
        eventually(&format!("{}: create", host.shim), || mark.exists()).await;
        apart.kill();
        host.start_manager();
        let report = host.load().await;
        // The Go shims of 1.x answer nothing while they create, and are taken for dead.
        if report.dead.is_empty() {
            assert_eq!(report.loaded, [host.key("pause")], "{}", host.shim);
            assert_eq!(report.leaked, [host.key("c1")], "{}", host.shim);
            fs::write(host.home().join("go"), "").unwrap();
            let task = timed(host.manager().get(&host.key("pause"))).await.unwrap();
            let state = timed(task.state(&INIT)).await.unwrap();
            assert_eq!((state.status, state.pid), (Status::RUNNING, pause), "{}", host.shim);
            host.end("pause").await;
        }
        eventually(&host.shim, || host.manager().list(None).is_empty()).await;
        timed(host.manager().settled()).await;
        host.assert_clean().await;
        assert_eq!(host.exits("c1"), [], "{}", host.shim);
    })
    .await;
}
