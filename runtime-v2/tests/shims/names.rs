//! Names and paths as long as they may be.

use std::{collections::BTreeSet, fs, path::PathBuf};

use runtime_v2::{Code, Key, config::MAX_SOCKET_DIR, id::MAX_LEN};

use crate::for_each_shim;

const SLEEP: &str = "sleep 1000";

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_names_work_and_no_two_share_a_socket() {
    for_each_shim("long", |host| async move {
        let host = host.with_longest_name();
        let ids = ["1", "2"].map(|last| "i".repeat(MAX_LEN - 1) + last);
        for id in &ids {
            host.run(id, SLEEP).await;
        }
        let tasks = host.manager().list(None);
        let addresses: BTreeSet<_> = tasks.iter().map(|task| task.shim().address()).collect();
        assert_eq!(addresses.len(), 2, "{}: {addresses:?}", host.shim);
        drop(tasks);
        for id in &ids {
            host.end(id).await;
        }
        host.assert_clean().await;
        let namespace = host.key("c1").namespace.to_string();
        assert_eq!(namespace.len(), MAX_LEN);
        for (namespace, id) in
            [(namespace.clone(), "i".repeat(MAX_LEN + 1)), (namespace + "n", "i".into())]
        {
            assert_eq!(Key::new(namespace, id).unwrap_err().kind(), Code::InvalidArgument);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_socket_directory_works_and_a_longer_one_is_refused_by_name() {
    for_each_shim("dir", |mut host| async move {
        if !host.is_own() {
            // Shims of containerd before 2.3 are not told of a directory.
            return;
        }
        let mut dir = host.home().join("s").display().to_string();
        dir.push_str(&"s".repeat(MAX_SOCKET_DIR - dir.len()));
        let dir = PathBuf::from(dir);
        host.stop_manager().await;
        host.start_manager_with(|config| config.socket_dir = Some(dir.clone()));
        let task = host.run("c1", SLEEP).await;
        assert!(task.shim().address().contains(dir.to_str().unwrap()));
        drop(task);
        host.end("c1").await;
        host.assert_clean().await;
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the socket goes too");
        let mut config = host.manager().shims().config().clone();
        config.socket_dir = Some(dir.with_extension("x"));
        let error = config.check().unwrap_err();
        assert!(error.to_string().contains(&MAX_SOCKET_DIR.to_string()), "{error}");
    })
    .await;
}
