//! Shims that speak an older API than was announced.

use std::fs;

use nix::sys::signal::Signal;
use runtime_v2::{Code, ProcessId};
use serde_json::{Value, json};

use crate::support::{Fixture, good, key, signal, timed};

const INIT: ProcessId = ProcessId::Init;

/// Announces v3 and serves v2, as the new `start` does for the old process of a pod.
fn old(refusal: &str) -> Value {
    json!({ "serves": [2], "unknown": refusal, "version": 3 })
}

fn noted_version(host: &Fixture, id: &str) -> i64 {
    let text = fs::read_to_string(host.bundle(id).join("bootstrap.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["version"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_finds_out_and_the_next_start_begins_with_the_truth() {
    for refusal in ["unimplemented", "invalid_argument"] {
        let mut host = Fixture::new(&old(refusal));
        let task = host.run("c1").await;
        assert_eq!(task.shim().version(), 2);
        assert_eq!(noted_version(&host, "c1"), 2);
        assert_eq!((host.count("v3 Create c1"), host.count("v2 Create c1")), (1, 1));
        // containerd 1.x, which the node may go back to, reads no other file.
        let noted = fs::read_to_string(host.bundle("c1").join("address")).unwrap();
        assert_eq!(noted, task.shim().address());
        drop(task);
        let report = host.restart().await;
        assert_eq!(report.loaded, [key("c1")]);
        assert_eq!((host.count("v3 Connect c1"), host.count("v2 Connect c1")), (0, 1));
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_finds_out_when_the_create_did_not_write_it_down() {
    for refusal in ["unimplemented", "invalid_argument"] {
        let mut host = Fixture::new(&old(refusal));
        let task = host.run("c1").await;
        let address = task.shim().address().to_owned();
        drop(task);
        host.stop_manager().await;
        // As stock containerd leaves it.
        let forgotten = format!(r#"{{"version":3,"address":"{address}","protocol":"ttrpc"}}"#);
        fs::write(host.bundle("c1").join("bootstrap.json"), forgotten).unwrap();
        host.start_manager();
        assert_eq!(host.load().await.loaded, [key("c1")]);
        assert_eq!(noted_version(&host, "c1"), 2);
        assert_eq!((host.count("v3 Connect c1"), host.count("v2 Connect c1")), (1, 1));
        let task = timed(host.manager().get(&key("c1"))).await.unwrap();
        timed(task.state(&INIT)).await.unwrap();
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_serves_neither_is_refused_and_ended() {
    let host = Fixture::new(&json!({ "serves": [] }));
    let error = host.create("c1").await.unwrap_err();
    assert_eq!(error.kind(), Code::Unimplemented);
    assert_eq!((host.count("v3 Create c1"), host.count("v2 Create c1")), (1, 1), "not more");
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_bundle_with_nothing_but_an_address_is_taken_over() {
    for bare in [false, true] {
        let script =
            json!({ "serves": [2], "answer": "plain", "version": 2, "abstract_socket": bare });
        let mut host = Fixture::new(&script);
        let task = host.run("c1").await;
        let address = task.shim().address().to_owned();
        drop(task);
        host.stop_manager().await;
        fs::remove_file(host.bundle("c1").join("bootstrap.json")).unwrap();
        fs::write(host.bundle("c1").join("address"), address).unwrap();
        host.start_manager();
        assert_eq!(host.load().await.loaded, [key("c1")]);
        assert_eq!(noted_version(&host, "c1"), 2);
        host.end("c1").await;
        host.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_of_both_is_spoken_to_as_it_was_announced() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    assert_eq!((task.shim().version(), noted_version(&host, "c1")), (3, 3));
    assert!(!host.bundle("c1").join("address").exists(), "what 1.x could not speak with");
    assert!(!host.calls().iter().any(|call| call.starts_with("v2 ")));
    host.end("c1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_of_grpc_is_spoken_to_and_found_again() {
    for answer in ["json", "protobuf"] {
        let mut host = Fixture::new(&json!({ "grpc": true, "answer": answer }));
        let task = host.run("c1").await;
        let refused = timed(host.manager().delete(&key("c1"))).await.unwrap_err();
        assert_eq!(refused.kind(), Code::FailedPrecondition);
        let noted = fs::read_to_string(host.bundle("c1").join("bootstrap.json")).unwrap();
        assert!(noted.ends_with(r#""protocol":"grpc"}"#), "{noted}");
        drop(task);
        assert_eq!(host.restart().await.loaded, [key("c1")]);
        host.end("c1").await;
        host.assert_clean().await;

        let task = host.run("c2").await;
        signal(*host.launched().last().unwrap(), Signal::SIGKILL);
        let exit = timed(task.wait(&INIT)).await.unwrap();
        assert_eq!((exit.pid, exit.status), (task.pid(), 137));
        timed(host.manager().settled()).await;
        host.assert_clean().await;
    }
}
