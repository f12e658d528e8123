//! Mounts that no shim can make, and containers that are restored as a whole: made in time, and
//! undone whatever happens.

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use nix::sys::signal::Signal;
use runtime_proto::task::Status;
use runtime_v2::{
    Code, CreateOptions, Error, Key, MountActivator, ProcessId, Restoration, Result, Task,
};
use serde_json::json;

use crate::support::{Fixture, Trouble, eventually, good, key, mount, signal, timed};

const INIT: ProcessId = ProcessId::Init;

fn trouble(host: &Fixture, trouble: Option<Trouble>) {
    *host.mounts.trouble.lock().unwrap() = trouble;
}

/// The double refuses to create anything on a mount that is not for shims.
#[tokio::test(flavor = "multi_thread")]
async fn mounts_are_made_before_the_shim_and_undone_behind_it() {
    let mut host = Fixture::new(&good());
    host.run("deleted").await;
    host.run("killed").await;
    assert_eq!(host.mounts.made(), ["deleted", "killed"]);
    host.end("deleted").await;
    assert_eq!(host.mounts.made(), ["killed"]);
    signal(host.launched()[1], Signal::SIGKILL);
    eventually("forgotten", || host.manager().list(None).is_empty()).await;
    timed(host.manager().settled()).await;
    host.assert_clean().await;

    host.run("dead").await;
    host.run("leaked").await;
    host.stop_manager().await;
    signal(host.launched()[2], Signal::SIGKILL);
    host.script(&json!({ "calls": {
        "State leaked": { "refuses": 5 }, "Pids leaked": { "refuses": 5 } } }));
    host.start_manager();
    let report = host.load().await;
    assert_eq!((report.dead, report.leaked), (vec![key("dead")], vec![key("leaked")]));
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_fails_or_hangs_leaves_nothing() {
    let host = Fixture::new(&good());
    trouble(&host, Some(Trouble::Fails));
    let error = host.create("c1").await.unwrap_err().to_string();
    assert!(error.contains("c1") && error.contains("no such handler"), "{error}");
    host.assert_clean().await;
    trouble(&host, Some(Trouble::Hangs));
    let create = host.manager().create(key("c1"), host.options());
    assert!(tokio::time::timeout(Duration::from_millis(100), create).await.is_err());
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    assert!(host.calls().iter().all(|call| !call.starts_with("start")), "no shim was started");
    trouble(&host, None);
    host.run("c1").await;
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_fails_undoes_its_own_mounts_only() {
    let host = Fixture::new(&json!({ "calls": { "Create": { "refuses": 2 } } }));
    let special = vec![mount("special", "/one")];
    host.mounts.activate(&key("c1"), special).await.unwrap();
    host.create("c1").await.unwrap_err();
    assert_eq!(host.mounts.made(), ["c1"], "somebody else's, and perhaps in use");
    host.create("c2").await.unwrap_err();
    assert_eq!(host.mounts.made(), ["c1"]);
    host.script(&good());
    host.run("c1").await;
    host.end("c1").await;
    host.assert_clean().await;
}

/// What is done in the place of unpacking.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unpack {
    Works,
    Fails,
    Hangs,
}

#[async_trait]
impl Restoration for Unpack {
    async fn complete(&self, rootfs: &Path) -> Result<()> {
        assert!(rootfs.is_dir());
        match self {
            Unpack::Works => Ok(()),
            Unpack::Fails => Err(Error::new(Code::DataLoss, "half a checkpoint")),
            Unpack::Hangs => std::future::pending().await,
        }
    }
}

async fn restore(host: &Fixture, unpack: Unpack) -> Result<Task> {
    let restoration: Option<Arc<dyn Restoration>> = Some(Arc::new(unpack));
    let options = CreateOptions { restoration, checkpoint: "/c".into(), ..host.options() };
    let c1: Key = key("c1");
    host.manager().create(c1, options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_restored_as_a_whole_runs_at_once() {
    let host = Fixture::new(&good());
    let task = timed(restore(&host, Unpack::Works)).await.unwrap();
    let state = timed(task.state(&INIT)).await.unwrap();
    assert_eq!((state.status, state.pid), (Status::RUNNING, task.pid()));
    drop(task);
    host.end("c1").await;
    host.assert_clean().await;

    let error = timed(restore(&host, Unpack::Fails)).await.unwrap_err();
    assert_eq!(error.kind(), Code::DataLoss, "{error}");
    host.assert_clean().await;

    host.script(&json!({ "calls": { "Start": { "refuses": 2 } } }));
    timed(restore(&host, Unpack::Works)).await.unwrap_err();
    host.assert_clean().await;
    // A start that came through before its caller left has to be undone too.
    host.script(&json!({ "calls": { "Start": { "refuses_after": 2 } } }));
    timed(restore(&host, Unpack::Works)).await.unwrap_err();
    host.assert_clean().await;

    host.script(&good());
    let restoring = restore(&host, Unpack::Hangs);
    assert!(tokio::time::timeout(Duration::from_millis(300), restoring).await.is_err());
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    assert_eq!(host.record.exits("c1").len(), 1, "of the one that came to run and was ended");
}
