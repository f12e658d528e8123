//! Deleting: to completion, from any point, and every shim ends when it is no longer needed.

use std::{fs, time::Duration};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use runtime_v2::{Code, CreateOptions, Endpoint, ProcessId};
use serde_json::json;

use crate::support::{Fixture, alive, eventually, good, key, timed};

const INIT: ProcessId = ProcessId::Init;

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_gives_up_does_not_leak_a_shim() {
    let host = Fixture::new(&json!({ "calls": { "Delete": { "until": "go" } } }));
    let task = host.run("c1").await;
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    let id = key("c1");
    let delete = host.manager().delete(&id);
    assert!(tokio::time::timeout(Duration::from_millis(100), delete).await.is_err());
    fs::write(host.path("go"), "").unwrap();
    let again = timed(host.manager().delete(&key("c1"))).await;
    assert!(again.is_ok() || again.is_err_and(|error| error.kind() == Code::NotFound));
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    assert_eq!(host.record.deletes("c1").len(), 1);
    host.run("c1").await;
    host.end("c1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_has_forgotten_the_task_is_shut_down_all_the_same() {
    let host = Fixture::new(&json!({ "calls": { "Delete": { "refuses_after": 5 } } }));
    let task = host.run("c1").await;
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    let error = timed(host.manager().delete(&key("c1"))).await.unwrap_err();
    assert_eq!(error.kind(), Code::NotFound);
    host.assert_clean().await;
    assert_eq!(host.record.exits("c1").len(), 1);
    assert_eq!(host.record.deletes("c1").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_dies_while_deleting_is_cleaned_up_behind() {
    for how in ["dies", "dies_after"] {
        let host = Fixture::new(&json!({ "calls": { "Delete": { how: true } } }));
        let task = host.run("c1").await;
        timed(task.kill(&INIT, 9, false)).await.unwrap();
        let exit = timed(host.manager().delete(&key("c1"))).await.unwrap();
        assert_eq!((exit.pid, exit.status), (task.pid(), 137));
        host.assert_clean().await;
        assert_eq!(host.record.exits("c1").len(), 1);
        assert_eq!(host.record.deletes("c1").len(), 1, "{how}");
        assert_eq!(host.count("delete c1"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_changes_nothing() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    let error = timed(host.manager().delete(&key("c1"))).await.unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    assert!(error.to_string().contains("cannot delete a running process"), "{error}");
    timed(task.state(&INIT)).await.unwrap();
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_deletes_at_once_one_succeeds_and_the_shim_ends() {
    let host = Fixture::new(&good());
    for _ in 0..20 {
        let task = host.run("c1").await;
        timed(task.kill(&INIT, 9, false)).await.unwrap();
        let deletes: Vec<_> = (0..8)
            .map(|_| {
                let manager = host.manager().clone();
                tokio::spawn(async move { manager.delete(&key("c1")).await })
            })
            .collect();
        let mut succeeded = 0;
        for delete in deletes {
            match timed(delete).await.unwrap() {
                Ok(_) => succeeded += 1,
                Err(error) => assert_eq!(error.kind(), Code::NotFound),
            }
        }
        assert_eq!(succeeded, 1);
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_of_many_ends_with_its_last_task_and_not_before() {
    for version in [2, 3] {
        let host = Fixture::new(&json!({ "group": "pod", "version": version, "answer": "json" }));
        for id in ["pause", "a", "b"] {
            host.run(id).await;
        }
        let launched = host.launched();
        assert_eq!(launched.len(), 1, "one process for all");
        for id in ["pause", "a"] {
            host.end(id).await;
            assert!(alive(launched[0]), "others still need it");
            assert_eq!(host.count(&format!("v{version} Shutdown {id}")), 1);
        }
        host.end("b").await;
        host.assert_clean().await;
    }
}

/// A shim knows of a container only once that is made; until then it would obey.
#[tokio::test(flavor = "multi_thread")]
async fn a_shim_is_not_ended_below_a_container_that_is_being_made() {
    let host = Fixture::new(&json!({
        "group": "pod", "calls": { "Create b": { "until": "go" }, "Create c": { "until": "no" } } }));
    host.run("a").await;
    let create = |id: &'static str| {
        let (manager, options) = (host.manager().clone(), host.options());
        tokio::spawn(async move { manager.create(key(id), options).await })
    };
    let making = create("b");
    eventually("asked to create", || host.count("v3 Create b") == 1).await;
    host.end("a").await;
    fs::write(host.path("go"), "").unwrap();
    timed(making).await.unwrap().unwrap();
    assert_eq!(host.launched().len(), 1);
    // One that comes to nothing takes the shim along, since nobody else will.
    let given_up = create("c");
    eventually("asked to create", || host.count("v3 Create c") == 1).await;
    timed(host.manager().delete(&key("b"))).await.unwrap();
    assert_eq!(host.living().len(), 1);
    given_up.abort();
    fs::write(host.path("no"), "").unwrap();
    eventually("undone", || host.manager().shims().reserve(&key("c")).is_ok()).await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_one_process_can_be_deleted_at_once() {
    let host = Fixture::new(&json!({ "group": "pod" }));
    for _ in 0..20 {
        for id in ["a", "b", "c"] {
            let task = host.run(id).await;
            timed(task.kill(&INIT, 9, false)).await.unwrap();
        }
        let (a, b, c) = (key("a"), key("b"), key("c"));
        let manager = host.manager();
        let done = timed(async {
            tokio::join!(manager.delete(&a), manager.delete(&b), manager.delete(&c))
        })
        .await;
        assert!(done.0.is_ok() && done.1.is_ok() && done.2.is_ok());
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_process_of_a_pod_ends_if_each_container_has_its_own() {
    for version in [2, 3] {
        let host = Fixture::new(&json!({ "version": version, "answer": "json" }));
        host.store.insert_sandbox(key("pod"));
        host.run("pod").await;
        // With a shim of v3 the second joins the first; with one of v2 it gets its own.
        let options = CreateOptions { sandbox: Some("pod".into()), ..host.options() };
        let app = timed(host.manager().create(key("app"), options)).await.unwrap();
        timed(app.start(&INIT)).await.unwrap();
        assert_eq!(host.launched().len(), if version == 2 { 2 } else { 1 });
        host.end("pod").await;
        timed(app.state(&INIT)).await.unwrap();
        host.end("app").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_joins_the_shim_of_its_sandbox_by_address() {
    let host = Fixture::new(&good());
    let pod = host.run("pod").await;
    let endpoint = Endpoint { address: format!("ttrpc+{}", pod.shim().address()), version: 3 };
    host.store.insert_sandbox(key("elsewhere"));
    let options = CreateOptions {
        sandbox: Some("elsewhere".into()),
        endpoint: Some(endpoint),
        ..host.options()
    };
    timed(host.manager().create(key("app"), options)).await.unwrap();
    assert_eq!(host.count("start app params"), 0);
    let read = |name: &str| fs::read_to_string(host.bundle("app").join(name)).unwrap();
    assert_eq!(read("sandbox"), "elsewhere");
    assert!(read("bootstrap.json").starts_with(r#"{"version":3,"address":"unix://"#));
    timed(host.manager().delete(&key("app"))).await.unwrap();
    host.end("pod").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_nobody_knows_is_a_mere_label_and_one_without_a_shim_is_an_error() {
    let host = Fixture::new(&good());
    let options = CreateOptions { sandbox: Some("pod".into()), ..host.options() };
    timed(host.manager().create(key("a"), options.clone())).await.unwrap();
    assert_eq!(host.launched().len(), 1);
    host.store.insert_sandbox(key("pod"));
    let error = timed(host.manager().create(key("b"), options)).await.unwrap_err();
    assert_eq!(error.kind(), Code::NotFound);
    assert!(error.to_string().contains("can't find shim for sandbox pod"), "{error}");
    timed(host.manager().delete(&key("a"))).await.unwrap();
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_ignores_shutdown_is_made_to_end() {
    let host = Fixture::new(&json!({ "obeys_shutdown": false }));
    host.run("c1").await;
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_root_file_system_is_never_walked_into_and_the_next_delete_goes_on() {
    let mut host = Fixture::new(&good());
    let source = host.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("sentinel"), "").unwrap();
    let task = host.run("c1").await;
    let rootfs = host.bundle("c1").join("rootfs");
    if mount(Some(&source), &rootfs, None::<&str>, MsFlags::MS_BIND, None::<&str>).is_err() {
        return;
    }
    let held = fs::File::open(&rootfs).unwrap();
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    let error = timed(host.manager().delete(&key("c1"))).await.unwrap_err();
    assert!(error.to_string().contains("rootfs"), "{error}");
    assert!(source.join("sentinel").exists() && rootfs.join("sentinel").exists());
    eventually("the shim ends", || host.living().is_empty()).await;
    assert_eq!(timed(host.manager().get(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
    assert_eq!(host.create("c1").await.unwrap_err().kind(), Code::AlreadyExists);
    drop(held);
    let exit = timed(host.manager().delete(&key("c1"))).await.unwrap();
    assert_eq!(exit.status, 137, "the exit of the first attempt");
    assert!(source.join("sentinel").exists());
    host.assert_clean().await;

    // The same with a restart between the attempts: one exit and one delete event in all.
    let task = host.run("c2").await;
    let rootfs = host.bundle("c2").join("rootfs");
    mount(Some(&source), &rootfs, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let held = fs::File::open(&rootfs).unwrap();
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    timed(host.manager().delete(&key("c2"))).await.unwrap_err();
    drop(task);
    drop(held);
    let report = host.restart().await;
    assert_eq!(report.dead, [key("c2")]);
    host.assert_clean().await;
    assert!(source.join("sentinel").exists());
    assert_eq!(host.record.exits("c2").len(), 1);
    assert_eq!(host.record.deletes("c2").len(), 1);
    let _ = umount2(&rootfs, MntFlags::MNT_DETACH);

    // The same for a client that asks for the task first, and is told that there is none.
    let task = host.run("c3").await;
    let rootfs = host.bundle("c3").join("rootfs");
    mount(Some(&source), &rootfs, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let held = fs::File::open(&rootfs).unwrap();
    timed(task.kill(&INIT, 9, false)).await.unwrap();
    timed(host.manager().delete(&key("c3"))).await.unwrap_err();
    assert_eq!(host.create("c3").await.unwrap_err().kind(), Code::AlreadyExists);
    drop(held);
    host.run("c3").await;
    host.end("c3").await;
    host.assert_clean().await;
    assert!(source.join("sentinel").exists());
    assert_eq!((host.record.exits("c3").len(), host.record.deletes("c3").len()), (2, 2));
}
