//! A real shim that is killed while the OCI runtime is at work for it: the manager cleans up behind
//! both, and tells what ended once.

use std::fs;

use nix::sys::signal::{Signal, kill};
use runtime_proto::any;
use runtime_v2::{Code, CreateOptions, ExecId, ExecOptions};
use serde_json::json;

use crate::{
    for_each_shim,
    host::{Host, INIT, eventually, timed},
    killed::{SLEEP, stops},
    runc_options,
};

/// Options of a container whose runtime stops at this step.
fn stopping(host: &Host, step: &str, after: bool) -> CreateOptions {
    let binary = stops(host, step, after);
    CreateOptions {
        task_options: runc_options(|options| options.binary_name = binary),
        ..host.options("c1", SLEEP)
    }
}

/// Waits until the runtime has stopped, then kills the shim.
async fn kill_shim_at(host: &Host, step: &str) {
    let mark = host.home().join("stopped");
    eventually(&format!("{}: {step}", host.shim), || mark.exists()).await;
    for shim in host.shims() {
        kill(shim, Signal::SIGKILL).unwrap();
    }
}

/// Nothing is left, and the id can be used again.
async fn assert_free(host: &Host) {
    eventually(&host.shim, || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    host.run("c1", SLEEP).await;
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_create_it_leaves_nothing_and_nothing_has_ended() {
    for after in [false, true] {
        for_each_shim("kcre", move |host| async move {
            let options = stopping(&host, "create", after);
            let (manager, key) = (host.manager().clone(), host.key("c1"));
            let creating = tokio::spawn(async move { manager.create(key, options).await });
            kill_shim_at(&host, "create").await;
            timed(creating).await.unwrap().unwrap_err();
            assert_eq!(host.exits("c1"), [], "{}", host.shim);
            assert_free(&host).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_start_or_an_exec_it_costs_the_container_and_that_is_told_once() {
    for (step, after) in [("start", false), ("start", true), ("exec", false), ("exec", true)] {
        for_each_shim("kexe", move |host| async move {
            let options = stopping(&host, step, after);
            let task = timed(host.manager().create(host.key("c1"), options)).await.unwrap();
            let pid = task.pid();
            let starting = tokio::spawn(async move {
                task.start(&INIT).await?;
                let process = json!({ "args": ["/bin/sleep", "1000"], "cwd": "/",
                    "user": { "uid": 0, "gid": 0 } });
                let spec = any::raw(any::OCI_PROCESS, process.to_string().into_bytes());
                let exec = ExecId::new("e1")?;
                let options = ExecOptions { spec: Some(spec), ..ExecOptions::default() };
                task.exec(&exec, options).await?;
                task.start(&exec.into()).await
            });
            kill_shim_at(&host, step).await;
            timed(starting).await.unwrap().unwrap_err();
            eventually(&host.shim, || host.manager().list(None).is_empty()).await;
            timed(host.manager().settled()).await;
            let ends = (host.exits("c1"), host.deletes("c1"));
            assert_eq!(ends, (vec![(pid, 137)], vec![(pid, 137)]), "{}: {step}", host.shim);
            assert_free(&host).await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_delete_it_is_deleted_all_the_same_and_its_end_is_the_true_one() {
    for after in [false, true] {
        for_each_shim("kdel", move |host| async move {
            let options = stopping(&host, "delete", after);
            let task = timed(host.manager().create(host.key("c1"), options)).await.unwrap();
            timed(task.start(&INIT)).await.unwrap();
            timed(task.kill(&INIT, 9, true)).await.unwrap();
            let exit = timed(task.wait(&INIT)).await.unwrap();
            let pid = task.pid();
            drop(task);
            eventually(&format!("{}: exit", host.shim), || !host.exits("c1").is_empty()).await;
            let (manager, key) = (host.manager().clone(), host.key("c1"));
            let deleting = tokio::spawn(async move { manager.delete(&key).await });
            kill_shim_at(&host, "delete").await;
            match timed(deleting).await.unwrap() {
                Ok(deleted) => assert_eq!((deleted.pid, deleted.status), (pid, exit.status)),
                Err(error) => assert_eq!(error.kind(), Code::NotFound, "{}: {error}", host.shim),
            }
            let ends = (host.exits("c1"), host.deletes("c1"));
            let told = vec![(pid, exit.status)];
            assert_eq!(ends, (told.clone(), told), "{}", host.shim);
            // The runtime is not to stop any more.
            fs::write(host.home().join("go"), "").unwrap();
            assert_free(&host).await;
        })
        .await;
    }
}
