//! Creating: whatever fails, at whatever stage, nothing is left and nothing else is touched.

use std::{fs, time::Duration};

use nix::sys::signal::Signal;
use runtime_proto::any;
use runtime_v2::{Code, CreateOptions, ProcessId};
use serde_json::{Value, json};

use crate::support::{Fixture, eventually, good, key, names, signal, timed};

/// Creates `c1` with this script, which must fail and leave nothing.
async fn fails(script: &Value) -> runtime_v2::Error {
    let host = Fixture::new(script);
    let error = host.create("c1").await.unwrap_err();
    assert!(error.to_string().contains("c1"), "the id is named: {error}");
    host.assert_clean().await;
    assert_eq!(host.record.exits("c1").len(), 0, "nothing ran, so nothing ended: {script}");
    host.script(&good());
    host.run("c1").await;
    host.end("c1").await;
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_leaves_nothing() {
    let error = fails(&json!({ "start": "fails_early" })).await;
    assert!(error.to_string().contains("told to fail early"), "{error}");
    let error = fails(&json!({ "start": "fails_late" })).await;
    assert!(error.to_string().contains("told to fail late"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_nobody_understands_leaves_nothing() {
    for answer in ["nothing", "garbage", "dead_address"] {
        fails(&json!({ "answer": answer })).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_nobody_knows_is_refused_by_name_and_leaves_nothing() {
    for answer in ["protobuf", "json"] {
        for version in [4, 1, -1] {
            let error = fails(&json!({ "answer": answer, "version": version })).await;
            if version == 4 || answer == "protobuf" {
                assert_eq!(error.kind(), Code::Unimplemented, "{error}");
                let text = error.to_string();
                assert!(text.contains(&version.to_string()) && text.contains('3'), "{text}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_nobody_knows_does_not_disturb_others_of_its_process() {
    let host = Fixture::new(&json!({ "group": "pod" }));
    let neighbour = host.run("a1").await;
    host.script(&json!({ "group": "pod", "version": 4 }));
    assert_eq!(host.create("c1").await.unwrap_err().kind(), Code::Unimplemented);
    timed(neighbour.state(&ProcessId::Init)).await.unwrap();
    assert_eq!(names(&host.path("state/ns")).len(), 1);
    host.end("a1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_task_leaves_nothing() {
    let refuse = |how: &str| json!({ "calls": { "Create": { how: 2 } } });
    let error = fails(&refuse("refuses")).await;
    assert!(error.to_string().contains("told to refuse"), "{error}");
    fails(&refuse("refuses_after")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_dies_while_creating_leaves_nothing() {
    for how in ["dies", "dies_after"] {
        let error = fails(&json!({ "calls": { "Create": { how: true } } })).await;
        assert_eq!(error.kind(), Code::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_will_not_go_is_made_to() {
    for shutdown in [json!({ "hangs": true }), json!({ "refuses": 2 })] {
        fails(&json!({ "calls": { "Create": { "refuses": 2 }, "Shutdown": shutdown } })).await;
    }
    fails(&json!({ "calls": { "Create": { "refuses": 2 } }, "obeys_shutdown": false })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_file_that_cannot_be_written_leaves_nothing() {
    let host = Fixture::new(&json!({ "start": "hangs" }));
    let creating = {
        let (manager, options) = (host.manager().clone(), host.options());
        tokio::spawn(async move { manager.create(key("c1"), options).await })
    };
    // The place of the temporary file is taken by a directory while `start` is at work.
    eventually("launched", || !host.launched().is_empty()).await;
    let obstacle = host.bundle("c1").join(".bootstrap.json");
    fs::create_dir(&obstacle).unwrap();
    creating.abort();
    let _ = creating.await;
    timed(host.manager().settled()).await;
    host.assert_clean().await;

    host.script(&json!({ "calls": { "Create": { "until": "go" } }, "serves": [2] }));
    let creating = {
        let (manager, options) = (host.manager().clone(), host.options());
        tokio::spawn(async move { manager.create(key("c1"), options).await })
    };
    // Here the downgrade is what cannot be written down.
    eventually("asked for v2", || host.count("v2 Create c1") == 1).await;
    fs::create_dir(host.bundle("c1").join(".bootstrap.json")).unwrap();
    fs::write(host.path("go"), "").unwrap();
    let error = timed(creating).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("bootstrap.json"), "{error}");
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_nothing() {
    let host = Fixture::without_manager(&json!({ "calls": { "Create": { "until": "go" } } }));
    let state = host.path("state");
    fs::create_dir(&state).unwrap();
    // Room for the directories and a few small files, as tmpfs counts pages and inodes.
    let mounted = nix::mount::mount(
        Some("tmpfs"),
        &state,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some("size=16k,nr_inodes=100"),
    );
    if mounted.is_err() {
        return;
    }
    let mut host = host;
    host.start_manager();
    fs::write(state.join("ballast"), vec![0; 12 << 10]).unwrap();
    let error = host.create("c1").await.unwrap_err();
    assert_eq!(error.kind(), Code::ResourceExhausted, "{error}");
    host.assert_clean().await;
    // Its lock is there, and is no reason not to begin on a full disk.
    host.stop_manager().await;
    host.start_manager();
    host.stop_manager().await;
    nix::mount::umount(&state).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_leaves_nothing() {
    for script in [
        json!({ "start": "hangs" }),
        json!({ "calls": { "Create": { "delay_ms": 300 } } }),
        json!({ "calls": { "Create": { "delay_ms": 300, "refuses": 2 } } }),
        json!({ "calls": { "Create": { "delay_ms": 300, "dies": true } } }),
    ] {
        let host = Fixture::new(&script);
        let create = host.manager().create(key("c1"), host.options());
        assert!(tokio::time::timeout(Duration::from_millis(150), create).await.is_err());
        timed(host.manager().settled()).await;
        host.assert_clean().await;
        assert_eq!(host.record.exits("c1").len(), 0);
        host.script(&good());
        host.run("c1").await;
        host.end("c1").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_hangs_in_create_is_ended_when_the_caller_goes_away() {
    let host = Fixture::new(&json!({ "calls": { "Create": { "hangs": true } } }));
    let create = host.manager().create(key("c1"), host.options());
    assert!(tokio::time::timeout(Duration::from_millis(150), create).await.is_err());
    timed(host.manager().settled()).await;
    host.assert_clean().await;
    assert_eq!(host.count("delete c1"), 1, "whatever it had begun is ended by the binary");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_gives_up_can_wait_until_all_is_undone() {
    let host = Fixture::new(&json!({ "calls": { "Create": { "delay_ms": 300 } } }));
    let (give_up, given_up) = tokio::sync::oneshot::channel::<()>();
    let (manager, options) = (host.manager().clone(), host.options());
    let creating = tokio::spawn(async move {
        let given_up = async { drop(given_up.await) };
        manager.create_until(key("c1"), options, given_up).await.map(|task| task.pid())
    });
    eventually("asked to create", || host.count("v3 Create c1") == 1).await;
    drop(give_up);
    let error = timed(creating).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Code::Canceled, "{error}");
    // Nothing has to be waited for.
    host.assert_clean().await;
    assert_eq!(host.record.exits("c1").len(), 0);
    host.script(&good());
    // One that has come to its end is given, however little it is wanted.
    let created = host.manager().create_until(key("c1"), host.options(), std::future::pending());
    assert!(timed(created).await.is_ok());
    host.end("c1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_task_is_untouched_by_a_second_create() {
    let host = Fixture::new(&good());
    let task = host.run("c1").await;
    let files = || {
        let bundle = host.bundle("c1");
        names(&bundle)
            .into_iter()
            .map(|name| (name.clone(), fs::read(bundle.join(name)).ok()))
            .collect::<Vec<_>>()
    };
    // The fifo has no end to read to.
    fs::remove_file(host.bundle("c1").join("log")).unwrap();
    let before = files();
    for _ in 0..3 {
        assert_eq!(host.create("c1").await.unwrap_err().kind(), Code::AlreadyExists);
    }
    assert_eq!(files(), before);
    timed(task.state(&ProcessId::Init)).await.unwrap();
    assert_eq!(host.launched().len(), 1);
    host.end("c1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_being_created_is_not_found_at_once() {
    let host = Fixture::new(&json!({ "calls": { "Create": { "until": "go" } } }));
    let (manager, options) = (host.manager().clone(), host.options());
    let creating = tokio::spawn(async move { manager.create(key("c1"), options).await });
    eventually("asked to create", || host.count("v3 Create c1") == 1).await;
    assert_eq!(timed(host.manager().get(&key("c1"))).await.unwrap_err().kind(), Code::NotFound);
    assert_eq!(host.create("c1").await.unwrap_err().kind(), Code::AlreadyExists);
    fs::write(host.path("go"), "").unwrap();
    timed(creating).await.unwrap().unwrap();
    timed(host.manager().delete(&key("c1"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_creates_at_once_one_wins() {
    let host = Fixture::new(&good());
    let creates: Vec<_> = (0..16)
        .map(|_| {
            let (manager, options) = (host.manager().clone(), host.options());
            tokio::spawn(async move { manager.create(key("c1"), options).await })
        })
        .collect();
    let mut won = 0;
    for create in creates {
        match timed(create).await.unwrap() {
            Ok(_) => won += 1,
            Err(error) => assert_eq!(error.kind(), Code::AlreadyExists),
        }
    }
    assert_eq!((won, host.launched().len()), (1, 1));
    timed(host.manager().delete(&key("c1"))).await.unwrap();
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_directory_is_healed() {
    let stale = |host: &Fixture, file: &str, content: &[u8]| {
        fs::create_dir_all(host.bundle("c1").join("rootfs")).unwrap();
        fs::write(host.bundle("c1").join(file), content).unwrap();
    };
    let dead = br#"{"version":3,"address":"unix:///nonexistent/s","protocol":"ttrpc"}"#;
    for (file, content) in [
        ("address", b"unix:///nonexistent/s".as_slice()),
        ("bootstrap.json", dead),
        ("bootstrap.json", b"{\"vers"),
        ("config.json", b"{}"),
    ] {
        let host = Fixture::new(&good());
        stale(&host, file, content);
        host.run("c1").await;
        host.end("c1").await;
        host.assert_clean().await;
        assert_eq!(host.record.exits("c1").len(), 1, "only that of the new one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_in_which_a_shim_lives_is_left_alone() {
    let mut host = Fixture::new(&good());
    host.run("c1").await;
    host.stop_manager().await;
    // A manager that did not load, and so does not know the task.
    host.start_manager();
    let error = host.create("c1").await.unwrap_err();
    assert_eq!(error.kind(), Code::AlreadyExists, "{error}");
    let pid = host.launched()[0];
    signal(pid, Signal::SIGSTOP);
    let error = host.create("c1").await.unwrap_err();
    assert_eq!(error.kind(), Code::AlreadyExists, "{error}");
    signal(pid, Signal::SIGCONT);
    assert!(host.bundle("c1").join("config.json").exists());
    assert_eq!(host.load().await.loaded, [key("c1")]);
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_knows_no_such_task_does_not_protect_a_directory() {
    let mut host = Fixture::new(&json!({ "calls": { "Create": { "hangs": true } } }));
    let options = host.options();
    let manager = host.manager().clone();
    let create = tokio::spawn(async move { manager.create(key("c1"), options).await });
    eventually("asked to create", || host.count("v3 Create c1") == 1).await;
    // As after a crash: the shim and its bundle stay, the manager's knowledge does not.
    let saved = host.path("saved");
    std::process::Command::new("cp")
        .args(["-a"])
        .arg(host.bundle("c1"))
        .arg(&saved)
        .status()
        .unwrap();
    create.abort();
    timed(host.manager().settled()).await;
    host.stop_manager().await;
    host.start_manager();
    fs::rename(&saved, host.bundle("c1")).unwrap();
    host.script(&good());
    host.run("c1").await;
    host.end("c1").await;
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn specs_of_every_kind_are_survived() {
    let host = Fixture::new(&good());
    let spec = |text: &str| Some(any::raw(any::OCI_SPEC, text.into()));
    for spec in
        [None, Some(any::raw("", Vec::new())), spec(""), spec("null"), spec("{}"), spec("][")]
    {
        let options = CreateOptions { spec, ..host.options() };
        timed(host.manager().create(key("c1"), options)).await.unwrap();
        timed(host.manager().delete(&key("c1"))).await.unwrap();
    }
    host.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mapped_mounts_need_a_runtime_that_says_it_can() {
    let spec = any::raw(any::OCI_SPEC, br#"{"mounts":[{"options":["idmap"]}]}"#.to_vec());
    let enabled = r#"{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}"#;
    for (features, works) in [("", false), ("{}", false), (enabled, true)] {
        let host = Fixture::new(&json!({ "features": features }));
        let options = CreateOptions { spec: Some(spec.clone()), ..host.options() };
        let created = timed(host.manager().create(key("c1"), options)).await;
        assert_eq!(created.is_ok(), works, "{features}");
        if let Err(error) = created {
            assert_eq!(error.kind(), Code::FailedPrecondition, "{error}");
            assert_eq!(host.launched().len(), 0);
        } else {
            timed(host.manager().delete(&key("c1"))).await.unwrap();
        }
        host.assert_clean().await;
    }
    let host = Fixture::new(&good());
    host.create("c1").await.unwrap();
    assert_eq!(host.count("info"), 0, "only asked for what needs it");
    timed(host.manager().delete(&key("c1"))).await.unwrap();
}
