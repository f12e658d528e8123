//! Checkpoints. criu itself is not needed: the runtime's part is played by the stand-in.

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::CheckpointOptions;
use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Rule};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Answer, Status, TaskClient};
use integration::{ensure, ensure_eq, paths};
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];

fn options(change: impl FnOnce(&mut CheckpointOptions)) -> Result<Option<Any>> {
    let mut options = CheckpointOptions::new();
    change(&mut options);
    let mut any = Any::new();
    any.type_url = "containerd.runc.v1.CheckpointOptions".to_owned();
    any.value = options.write_to_bytes()?;
    Ok(Some(any))
}

async fn status(tasks: &TaskClient, id: &str) -> Result<Status> {
    Ok(tasks.status(id, "").await?.enum_value_or_default())
}

fn code<T>(answer: Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

/// Options with the path of a parent checkpoint, which the published message does not have: field 10.
fn with_parent(parent: &str) -> Result<Option<Any>> {
    let mut any = options(|options| options.exit = true)?.unwrap_or_default();
    any.value.extend([0x52, u8::try_from(parent.len())?]);
    any.value.extend(parent.bytes());
    Ok(Some(any))
}

async fn running(fixture: &Fixture, fake: &FakeRunc) -> Result<Container> {
    Container::run_with(fixture, "a", &Spec::new(&SLEEP), &Stdio::null(), Some(&fake.path)).await
}

#[test]
fn checkpoint_passes_paths_and_flags_and_leaves_the_container_running() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[Rule { skip: true, ..Rule::on("checkpoint") }])?;
        let work = fixture.file("criu-work").display().to_string();
        let image = fixture.file("image").display().to_string();
        let with = options(|options| {
            options.open_tcp = true;
            options.file_locks = true;
            options.work_path.clone_from(&work);
        })?;
        tasks.checkpoint(id, &image, with).await?;
        tasks.checkpoint(id, &image, None).await?;
        let calls = fake.calls_of("checkpoint")?;
        let call = calls.first().ok_or_else(|| Failure::new("no call"))?;
        ensure_eq!(call.value("--image-path"), Some(image.as_str()), "image");
        ensure_eq!(call.value("--work-path"), Some(work.as_str()), "work");
        for flag in ["--tcp-established", "--file-locks", "--leave-running"] {
            ensure!(call.has(flag), "no {flag} in {call:?}");
        }
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        container.retire().await
    })
}

#[test]
fn failing_checkpoint_says_where_the_log_of_the_dump_is() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[Rule::on("checkpoint").fails("criu says no")])?;
        let work = fixture.file("criu-work");
        std::fs::create_dir_all(&work)?;
        std::fs::write(work.join("dump.log"), "the reason\n")?;
        let with = options(|options| options.work_path = work.display().to_string())?;
        let image = fixture.file("image").display().to_string();
        let error = tasks.checkpoint(id, &image, with).await.err();
        let error = error.ok_or_else(|| Failure::new("dumped"))?.to_string();
        let log = container.bundle.dir.join("criu-dump.log");
        ensure!(error.contains(&log.display().to_string()), "{error}");
        ensure_eq!(std::fs::read_to_string(log)?, "the reason\n", "log");
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        container.retire().await
    })
}

#[test]
fn every_option_has_its_argument() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims take neither a message without type nor a parent");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[Rule::on("checkpoint").succeeds()])?;
        let kept = container.bundle.dir.join("work/criu-work").display().to_string();
        let (none, leave) = (options(|_| {})?, "--leave-running");
        let cases: Vec<(&str, Option<Any>, Vec<&str>)> = vec![
            ("nothing", None, vec![leave]),
            ("an empty message", none, vec![leave]),
            ("no type", Some(Any::new()), vec![leave]),
            ("exit", options(|options| options.exit = true)?, vec![]),
            ("tcp", options(|options| options.open_tcp = true)?, vec!["--tcp-established", leave]),
            (
                "sockets",
                options(|options| options.external_unix_sockets = true)?,
                vec!["--ext-unix-sk", leave],
            ),
            ("terminal", options(|options| options.terminal = true)?, vec!["--shell-job", leave]),
            ("locks", options(|options| options.file_locks = true)?, vec!["--file-locks", leave]),
            (
                "namespaces",
                options(|options| {
                    options.empty_namespaces = vec!["network".to_owned(), "ipc".to_owned()];
                })?,
                vec!["--empty-ns", "network", "--empty-ns", "ipc", leave],
            ),
            // Which the shims of containerd do not hand on either.
            ("cgroups", options(|options| options.cgroups_mode = "soft".to_owned())?, vec![leave]),
            ("parent", with_parent("../before")?, vec!["--parent-path", "../before"]),
        ];
        for (number, (what, with, arguments)) in cases.into_iter().enumerate() {
            tasks.checkpoint(id, "/image", with).await?;
            let calls = fake.calls_of("checkpoint")?;
            ensure_eq!(calls.len(), number + 1, "calls");
            let call = calls.last().ok_or_else(|| Failure::new("no call"))?;
            let mut right = vec!["checkpoint", "--image-path", "/image", "--work-path", &kept];
            right.extend(arguments);
            right.push(id);
            ensure_eq!(call.line(), right, "{what}");
            ensure!(
                !container.bundle.dir.join("work/criu-work").exists(),
                "criu's directory stays"
            );
        }
        container.retire().await
    })
}

#[test]
fn paths_of_the_options_are_used_where_the_request_has_none() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[Rule::on("checkpoint").succeeds()])?;
        let work = fixture.file("work").display().to_string();
        std::fs::create_dir_all(&work)?;
        let both = |image: &str| {
            options(|options| {
                options.work_path.clone_from(&work);
                image.clone_into(&mut options.image_path);
            })
        };
        tasks.checkpoint(id, "", both("/of/options")?).await?;
        tasks.checkpoint(id, "/of/request", both("/of/options")?).await?;
        let calls = fake.calls_of("checkpoint")?;
        let images: Vec<_> = calls.iter().map(|call| call.value("--image-path")).collect();
        if !paths::is_go_shim() {
            ensure_eq!(images, [Some("/of/options"), Some("/of/request")], "images");
        }
        for call in &calls {
            ensure_eq!(call.value("--work-path"), Some(work.as_str()), "work");
        }
        ensure!(std::path::Path::new(&work).exists(), "the client's directory was removed");
        container.retire().await
    })
}

#[test]
fn container_that_a_checkpoint_ended_stops_and_can_be_deleted() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not know the words of crun");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            let _ = std::fs::remove_file(fixture.bin().join("fakerunc"));
            let mut fake = FakeRunc::install_for(fixture, &runtime)?;
            let none = Stdio::null();
            let container =
                Container::run_with(fixture, name, &Spec::new(&SLEEP), &none, Some(&fake.path))
                    .await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            // The real one removes what it has written down.
            fake.obey(&[Rule::on("checkpoint").succeeds().besides(&["delete", "--force", id])])?;
            tasks.checkpoint(id, "/image", options(|options| options.exit = true)?).await?;
            ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "exit status, {name}");
            ensure_eq!(status(tasks, id).await?, Status::STOPPED, "status, {name}");
            ensure!(tasks.checkpoint(id, "/image", None).await.is_err(), "a second one, {name}");
            ensure_eq!(tasks.delete(id, "").await?.exit_status, 137, "deleted, {name}");
            container.shim.shutdown(id).await?;
            container.shim.gone().await?;
            let right = ["create", "start", "exit", "delete"];
            ensure_eq!(sink.words(id)?, right, "events, {name}");
        }
        Ok(())
    })
}

#[test]
fn options_of_another_type_are_refused_without_a_call() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims have another code for it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for (kind, bytes) in [
            ("containerd.runc.v1.Options", &b""[..]),
            ("google.protobuf.Empty", &b""[..]),
            ("containerd.runc.v1.CheckpointOptions", &b"\xff\xff\xff"[..]),
        ] {
            let mut any = Any::new();
            kind.clone_into(&mut any.type_url);
            any.value = bytes.to_vec();
            let refused = code(tasks.checkpoint(id, "/image", Some(any)).await);
            ensure_eq!(refused, Some(Code::INVALID_ARGUMENT), "{kind}");
        }
        ensure!(fake.calls_of("checkpoint")?.is_empty(), "the runtime was called");
        ensure_eq!(status(tasks, id).await?, Status::RUNNING, "status");
        container.retire().await
    })
}

#[test]
fn only_what_has_begun_can_be_checkpointed() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule::on("checkpoint").succeeds()])?;
        let (spec, none) = (Spec::new(&SLEEP), Stdio::null());
        let container = Container::create(fixture, "a", &spec, &none, Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        ensure!(tasks.checkpoint(id, "/image", None).await.is_err(), "a created one");
        tasks.start(id, "").await?;
        tasks.pause(id).await?;
        // Frozen is how clients like it best.
        tasks.checkpoint(id, "/image", None).await?;
        ensure_eq!(status(tasks, id).await?, Status::PAUSED, "status");
        tasks.resume(id).await?;
        tasks.checkpoint(id, "/image", None).await?;
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        ensure!(tasks.checkpoint(id, "/image", None).await.is_err(), "an ended one");
        ensure_eq!(fake.calls_of("checkpoint")?.len(), 2, "calls");
        ensure_eq!(
            code(tasks.checkpoint("nobody", "/image", None).await),
            Some(Code::NOT_FOUND),
            "nobody"
        );
        container.retire().await
    })
}

#[test]
fn log_of_a_dump_that_failed_is_kept_from_the_shims_own_directory() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims leave that directory to criu");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let work = container.bundle.dir.join("work/criu-work");
        let log = (work.join("dump.log"), "criu's own words\n".to_owned());
        let failing = Rule::on("checkpoint").fails("criu failed: type NOTIFY errno 0");
        fake.obey(&[Rule { files: vec![log], ..failing }])?;
        let error = tasks.checkpoint(id, "/image", None).await.err();
        let error = error.ok_or_else(|| Failure::new("dumped"))?.to_string();
        let kept = container.bundle.dir.join("criu-dump.log");
        ensure!(error.contains("errno 0"), "{error}");
        ensure!(error.contains(&kept.display().to_string()), "{error}");
        ensure_eq!(std::fs::read_to_string(kept)?, "criu's own words\n", "log");
        ensure!(!work.exists(), "criu's directory stays");
        // It can be tried again.
        fake.obey(&[Rule::on("checkpoint").succeeds()])?;
        tasks.checkpoint(id, "/image", None).await?;
        container.retire().await
    })
}
