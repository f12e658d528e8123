//! The manager with real shims: this workspace's own, and Go's of every series at hand.
//!
//! `SHIM_RUNC` names the own one, `DEPS_DIR` (by default `.deps` of the workspace) has those of
//! several containerd series below it and may have the Rust shim that is published as crate
//! `containerd-runc-shim` (`make peers`), and the one in `PATH` is taken
//! too. Containers need root; without it, or without any shim, there is nothing to test and the
//! tests say so and pass.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

#[path = "../apart/mod.rs"]
mod apart;
mod at_hand;
mod host;
mod killed;
mod killed_shim;
mod names;

use std::{fs, time::Duration};

use host::{Host, INIT, eventually, has_process, timed};
use nix::{sys::signal::Signal, unistd::Pid};
use protobuf::Message;
use runtime_proto::{any, options::OptionsMessage, task::Status};
use runtime_v2::{Code, CreateOptions, ExecId, ExecOptions, ProcessId};
use serde_json::json;

fn runc_options(set: impl FnOnce(&mut OptionsMessage)) -> Option<runtime_proto::types::Any> {
    let mut options = OptionsMessage::new();
    set(&mut options);
    Some(any::raw("containerd.runc.v1.Options", options.write_to_bytes().unwrap()))
}

/// Does the same with every shim at hand, side by side.
async fn for_each_shim<F: Future<Output = ()> + Send + 'static>(
    test: &str,
    body: impl Fn(Host) -> F,
) {
    let bodies: Vec<_> = Host::all(test).into_iter().map(|host| tokio::spawn(body(host))).collect();
    for body in bodies {
        if let Err(failed) = body.await {
            std::panic::resume_unwind(failed.into_panic());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_lives_with_an_exec_and_leaves_nothing() {
    for_each_shim("life", |host| async move {
        let task = host.run("c1", "sleep 1000").await;
        let state = timed(task.state(&INIT)).await.unwrap();
        assert_eq!((state.status, state.pid), (Status::RUNNING, task.pid()), "{}", host.shim);
        assert!(timed(task.pids()).await.unwrap().iter().any(|info| info.pid == task.pid()));
        assert!(!timed(task.stats()).await.unwrap().type_url.is_empty());
        let exec = ExecId::new("e1").unwrap();
        let process = json!({ "args": ["/bin/busybox", "sh", "-c", "exit 5"], "cwd": "/",
            "user": { "uid": 0, "gid": 0 } });
        let spec = any::raw(any::OCI_PROCESS, process.to_string().into_bytes());
        timed(task.exec(&exec, ExecOptions { spec: Some(spec), ..ExecOptions::default() }))
            .await
            .unwrap();
        let process = ProcessId::from(exec.clone());
        assert_ne!(timed(task.start(&process)).await.unwrap(), 0);
        assert_eq!(timed(task.wait(&process)).await.unwrap().status, 5, "{}", host.shim);
        assert_eq!(timed(task.delete_exec(&exec)).await.unwrap().status, 5);
        timed(task.kill(&INIT, 9, true)).await.unwrap();
        assert_eq!(timed(task.wait(&INIT)).await.unwrap().status, 137);
        let exit = timed(host.manager().delete(&host.key("c1"))).await.unwrap();
        assert_eq!((exit.status, exit.pid), (137, task.pid()), "{}", host.shim);
        host.assert_clean().await;
        // One exit for the exec, one for init. The published shim tells of an exec's deletion too.
        let deletes = if host.is_published() { 2 } else { 1 };
        assert_eq!(
            (host.exits("c1").len(), host.deletes("c1").len()),
            (2, deletes),
            "{}",
            host.shim
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_killed_shim_the_container_ends_and_is_reported_once() {
    for_each_shim("kill", |host| async move {
        let task = host.run("c1", "sleep 1000").await;
        let init = Pid::from_raw(i32::try_from(task.pid()).unwrap());
        for shim in host.shims() {
            nix::sys::signal::kill(shim, Signal::SIGKILL).unwrap();
        }
        eventually("the task is forgotten", || host.manager().list(None).is_empty()).await;
        timed(host.manager().settled()).await;
        eventually(&format!("{}: init {init} is dead", host.shim), || !has_process(init.as_raw()))
            .await;
        host.assert_clean().await;
        let exits = host.exits("c1");
        assert_eq!(exits, [(task.pid(), 137)], "{}", host.shim);
        assert_eq!(host.deletes("c1"), [(task.pid(), 137)]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_while_no_manager_looked_is_found_as_it_was() {
    for_each_shim("exit", |mut host| async move {
        let task = host.run("c1", "while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 7").await;
        let init = task.pid();
        drop(task);
        host.stop_manager().await;
        fs::write(host.rootfs().join("tmp/go"), "").unwrap();
        eventually("init has ended", || !has_process(i32::try_from(init).unwrap())).await;
        host.start_manager();
        let report = host.load().await;
        assert_eq!(report.loaded, [host.key("c1")], "{}", host.shim);
        let task = timed(host.manager().get(&host.key("c1"))).await.unwrap();
        // Its shim may take a moment more to notice.
        timed(task.wait(&INIT)).await.unwrap();
        let exit = timed(task.state(&INIT)).await.unwrap().exit.unwrap();
        assert_eq!((exit.status, task.pid()), (7, init), "{}", host.shim);
        assert_eq!(timed(host.manager().delete(&host.key("c1"))).await.unwrap().status, 7);
        host.assert_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shim_of_a_pod_ends_with_its_last_container() {
    for_each_shim("pod", |host| async move {
        if host.is_v1() {
            return;
        }
        for id in ["pause", "app1", "app2"] {
            host.run_in_group(id, "sleep 1000", "pause").await;
        }
        assert_eq!(host.shims().len(), 1, "{}", host.shim);
        for id in ["pause", "app1"] {
            host.end(id).await;
            assert_eq!(host.shims().len(), 1, "{}", host.shim);
        }
        host.end("app2").await;
        host.assert_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_be_created_leaves_nothing_and_never_ended() {
    for_each_shim("fail", |host| async move {
        let mut options = host.options("c1", "sleep 1");
        options.spec = Some(host.spec("c1", &["/nonexistent"], None));
        let error = timed(host.manager().create(host.key("c1"), options)).await.unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "the runtime's words: {error}");
        host.assert_clean().await;
        assert_eq!(host.exits("c1"), [], "{}", host.shim);
        host.run("c1", "sleep 1000").await;
        host.end("c1").await;
        host.assert_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_nobody_waits_for_leaves_nothing() {
    for_each_shim("gone", |host| async move {
        let slow = host
            .script("slow-runc", "case \"$*\" in *' create '*) sleep 1;; esac; exec runc \"$@\"");
        let options = CreateOptions {
            task_options: runc_options(|options| options.binary_name = slow),
            ..host.options("c1", "sleep 1000")
        };
        let create = host.manager().create(host.key("c1"), options);
        assert!(tokio::time::timeout(Duration::from_millis(500), create).await.is_err());
        timed(host.manager().settled()).await;
        host.assert_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_hangs_is_ended_by_force() {
    for_each_shim("hang", |host| async move {
        let hung = host.script(
            "hung-runc",
            "case \"$*\" in *' create '*) sleep 1000;; esac; exec runc \"$@\"",
        );
        let options = CreateOptions {
            task_options: runc_options(|options| options.binary_name = hung),
            ..host.options("c1", "sleep 1000")
        };
        let create = host.manager().create(host.key("c1"), options);
        assert!(tokio::time::timeout(Duration::from_millis(500), create).await.is_err());
        timed(host.manager().settled()).await;
        host.assert_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_s_options_reach_start_in_every_era() {
    let hierarchy = std::path::Path::new("/sys/fs/cgroup/pids");
    if !hierarchy.join("tasks").exists() {
        eprintln!("skipped: the cgroup of a shim is looked up in the pids hierarchy of cgroup v1");
        return;
    }
    for_each_shim("opts", |host| async move {
        if host.is_published() {
            host.leave_out(
                "the_runtime_s_options_reach_start_in_every_era",
                "it fails where one hierarchy has other files than it expects",
            );
            return;
        }
        if host.is_v1() {
            return;
        }
        let cgroup = host.unique("mgr-test");
        fs::create_dir_all(hierarchy.join(&cgroup)).unwrap();
        for other in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            if other.path().join("tasks").exists() {
                fs::create_dir_all(other.path().join(&cgroup)).unwrap();
                // Those of cpuset take no process before they have these.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if let Ok(all) = fs::read(other.path().join(file)) {
                        fs::write(other.path().join(&cgroup).join(file), all).unwrap();
                    }
                }
            }
        }
        let path = format!("/{cgroup}");
        let options = CreateOptions {
            runtime_options: runc_options(|options| options.shim_cgroup = path),
            ..host.options("c1", "sleep 1000")
        };
        timed(host.manager().create(host.key("c1"), options)).await.unwrap();
        let shim = host.shims()[0].as_raw().to_string();
        let members = fs::read_to_string(hierarchy.join(&cgroup).join("cgroup.procs")).unwrap();
        assert!(members.lines().any(|pid| pid == shim), "{}: {shim} not in {members}", host.shim);
        timed(host.manager().delete(&host.key("c1"))).await.unwrap();
        host.assert_clean().await;
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(&cgroup));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_container_is_not_deleted() {
    for_each_shim("busy", |host| async move {
        if host.is_published() {
            host.leave_out(
                "a_running_container_is_not_deleted",
                "it does delete one, and says that went well",
            );
            return;
        }
        let task = host.run("c1", "sleep 1000").await;
        let error = timed(host.manager().delete(&host.key("c1"))).await.unwrap_err();
        assert_ne!(error.kind(), Code::NotFound, "{}: {error}", host.shim);
        assert_eq!(timed(task.state(&INIT)).await.unwrap().status, Status::RUNNING);
        host.end("c1").await;
        host.assert_clean().await;
    })
    .await;
}
