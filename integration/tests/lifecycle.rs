//! Create, start, wait, delete, shut down: the life of one container, and what is said of it at every point.

use std::os::unix::fs::PermissionsExt;

use integration::container::Container;
use integration::event::Event;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::paths;
use integration::scenario::{scenario, skip};
use integration::shim::{ERAS, Era, Launch, is_alive};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{CallError, Status, TaskClient, V2, V3};
use integration::{ensure, ensure_eq};
use ttrpc::Code;

async fn status(tasks: &TaskClient, id: &str) -> Result<Status> {
    Ok(tasks.status(id, "").await?.enum_value_or_default())
}

#[test]
fn one_shot_container_lives_and_leaves_nothing_in_every_era() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for era in ERAS {
            if era == Era::V2_3 && paths::is_go_shim() {
                skip("Go's shims before 2.3 do not read its start message")?;
                continue;
            }
            let name = format!("{era:?}").replace('_', ".");
            let bundle = fixture.bundle(&name, &Spec::shell("exit 7"))?;
            let shim = Launch::new(fixture, &bundle).era(era).start().await?;
            let id = bundle.id.as_str();
            let pid = shim.tasks.create(&bundle, &Stdio::null()).await?;
            ensure!(pid > 0 && is_alive(pid), "init {pid} is not there");
            ensure_eq!(status(&shim.tasks, id).await?, Status::CREATED, "status");
            ensure_eq!(shim.tasks.start(id, "").await?, pid, "pid of start");
            ensure_eq!(shim.tasks.wait(id, "").await?.exit_status, 7, "exit status");
            let deleted = shim.tasks.delete(id, "").await?;
            ensure_eq!((deleted.pid, deleted.exit_status), (pid, 7), "delete");
            shim.shutdown(id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn both_task_services_answer() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims serve one of them");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        for service in [V2, V3] {
            let answer = shim.tasks.speaking(service).connect_task("none").await?;
            ensure_eq!(answer.shim_pid, shim.pid, "{service}");
        }
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn every_answer_and_event_names_init_until_delete() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        let (id, pid, tasks) = (container.id(), container.pid, &container.shim.tasks);
        tasks.wait(id, "").await?;
        ensure_eq!(tasks.state(id, "").await?.pid, pid, "state");
        ensure_eq!(tasks.connect_task(id).await?.task_pid, pid, "connect");
        let unknown = tasks.connect_task("nobody").await?;
        ensure_eq!(
            (unknown.task_pid, unknown.shim_pid),
            (0, container.shim.pid),
            "connect, unknown"
        );
        ensure_eq!(tasks.delete(id, "").await?.pid, pid, "delete");
        for event in sink.wait_for_word(id, "delete").await? {
            let named = match event {
                Event::Create { pid, .. }
                | Event::Start { pid, .. }
                | Event::Delete { pid, .. } => pid,
                Event::Exit(exit) => exit.pid,
                other => return Err(Failure::new(format!("unexpected {other:?}"))),
            };
            ensure_eq!(named, pid, "event");
        }
        container.shim.shutdown(id).await?;
        container.shim.gone().await
    })
}

#[test]
fn init_that_dies_inside_create_is_stopped_and_can_be_deleted() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule { kill_init: Some(9), ..Rule::on("create") }])?;
        let spec = Spec::new(&["sleep", "1000"]);
        let container =
            Container::create(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "wait");
        ensure_eq!(status(tasks, id).await?, Status::STOPPED, "status");
        ensure_eq!(tasks.delete(id, "").await?.exit_status, 137, "delete");
        sink.wait_for_word(id, "delete").await?;
        ensure_eq!(sink.words(id)?, ["create", "exit", "delete"], "events");
        container.shim.shutdown(id).await?;
        container.shim.gone().await
    })
}

#[test]
fn failed_create_leaves_no_process_mount_or_event_of_an_exit() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        // The real create has done its work when the runtime says that it failed.
        fake.obey(&[Rule {
            exit: Some(1),
            error: "made to fail".to_owned(),
            ..Rule::on("create")
        }])?;
        let bundle = fixture.bundle("a", &Spec::new(&["sleep", "1000"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = integration::container::with_runtime(&fake.path)?;
        let answer = shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await;
        let error = answer.err().ok_or_else(|| Failure::new("create succeeded"))?;
        ensure!(error.to_string().contains("made to fail"), "{error}");
        if !paths::is_go_shim() {
            // The manager's clean-up by `delete` is a second net; the shim does not count on it.
            let left = integration::leak::Snapshot::take(&fixture.scope());
            let inits = left.items().filter(|item| item.detail.contains("runc init")).count();
            ensure_eq!(inits, 0, "processes of runc init in {left:?}");
        }
        Launch::new(fixture, &bundle).run("delete").await?;
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
        ensure_eq!(sink.words(&bundle.id)?, Vec::<String>::new(), "events");
        Ok(())
    })
}

#[test]
fn runtime_that_says_why_on_stderr_alone_is_heard() -> Result {
    scenario(async |fixture| {
        if paths::is_go_shim() {
            return skip("Go's shims pass what a runtime says there on to the container's reader");
        }
        let _sink = fixture.fake_containerd()?;
        let mute = fixture.file("mute-runtime");
        std::fs::write(&mute, "#!/bin/sh\necho the cgroups are not to my taste >&2\nexit 1\n")?;
        std::fs::set_permissions(&mute, std::fs::Permissions::from_mode(0o755))?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = Some(integration::container::with_runtime(&mute)?);
        let stdio = fixture.fifos("a")?.without_stdin();
        let answer = shim.tasks.create_with(&bundle, &stdio, options).await;
        let error = answer.err().ok_or_else(|| Failure::new("create succeeded"))?;
        ensure!(error.to_string().contains("not to my taste"), "{error}");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn missing_program_fails_create_with_the_runtimes_words() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["no-such-program"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let answer = shim.tasks.create(&bundle, &Stdio::null()).await;
        let error = answer.err().ok_or_else(|| Failure::new("create succeeded"))?;
        ensure!(error.to_string().contains("no-such-program"), "{error}");
        ensure!(error.to_string().contains("OCI runtime create failed"), "{error}");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
        ensure_eq!(sink.words(&bundle.id)?, Vec::<String>::new(), "events");
        Ok(())
    })
}

#[test]
fn containers_of_one_shim_do_not_wait_for_each_others_runtime() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.4 hold one lock while the runtime creates");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let group =
            |spec: Spec| spec.annotation("io.containerd.runc.v2.group", &fixture.id("group"));
        let a = Container::run_with(
            fixture,
            "a",
            &group(Spec::new(&["sleep", "1000"])),
            &Stdio::null(),
            Some(&fake.path),
        )
        .await?;
        let b = fixture.bundle("b", &group(Spec::new(&["sleep", "1000"])))?;
        let gate = Gate::new(fixture, "create");
        fake.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("create").of(&b.id) }])?;
        let joined = Launch::new(fixture, &b).start().await?;
        ensure_eq!(joined.pid, a.shim.pid, "shim of the group");
        let options = integration::container::with_runtime(&fake.path)?;
        let tasks = joined.tasks.clone();
        let creation = async { tasks.create_with(&b, &Stdio::null(), Some(options)).await };
        let meanwhile = async {
            gate.reached().await?;
            let (id, tasks) = (a.id(), &a.shim.tasks);
            ensure_eq!(status(tasks, id).await?, Status::RUNNING, "status");
            ensure!(!tasks.pids(id).await?.processes.is_empty(), "no pids");
            tasks.stats(id).await?;
            a.exec("e", &["true"]).await?;
            ensure_eq!(tasks.wait(id, "e").await?.exit_status, 0, "exec");
            tasks.delete(id, "e").await?;
            tasks.kill(id, "", 9).await?;
            tasks.wait(id, "").await?;
            tasks.delete(id, "").await?;
            let unborn = tasks.state(&b.id, "").await.err().and_then(|error| error.code());
            ensure_eq!(unborn, Some(Code::NOT_FOUND), "state of what is being created");
            gate.open()
        };
        let (created, done) = tokio::join!(creation, meanwhile);
        done?;
        created?;
        joined.retire(&b.id).await?;
        joined.gone().await
    })
}

#[test]
fn second_create_of_an_id_leaves_the_first_alone() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        if paths::is_go_shim() {
            // Go's overwrites the entry and unmounts the root filesystem of the live one.
            skip("Go's shim takes the second for the first")?;
            return container.retire().await;
        }
        let config = container.bundle.file("options.json");
        let answer = container.shim.tasks.create(&container.bundle, &Stdio::null()).await;
        let code = answer.err().and_then(|error| error.code());
        ensure_eq!(code, Some(Code::ALREADY_EXISTS), "second create");
        ensure_eq!(status(&container.shim.tasks, container.id()).await?, Status::RUNNING, "status");
        ensure_eq!(container.bundle.file("options.json"), config, "options.json");
        container.exec("e", &["true"]).await?;
        let exit = container.shim.tasks.wait(container.id(), "e").await?;
        ensure_eq!(exit.exit_status, 0, "an exec in the first, whose root filesystem is in place");
        container.retire().await
    })
}

#[test]
fn many_deletes_and_shutdowns_at_once_have_one_winner_and_end_the_shim() -> Result {
    const ROUNDS: usize = 15;
    const AT_ONCE: usize = 8;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for round in 0..ROUNDS {
            let container =
                Container::run(fixture, &format!("r{round}"), &Spec::new(&["true"])).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            tasks.wait(id, "").await?;
            let calls: Vec<_> = (0..AT_ONCE)
                .map(|_| {
                    let (tasks, id) = (tasks.clone(), id.to_owned());
                    tokio::spawn(async move {
                        let deleted = tasks.delete(&id, "").await;
                        (deleted, tasks.shutdown(&id).await)
                    })
                })
                .collect();
            let mut winners = 0;
            for call in calls {
                match call.await?.0 {
                    Ok(_) => winners += 1,
                    Err(CallError::Status { code: Code::NOT_FOUND, .. } | CallError::Closed) => {}
                    Err(other) => return Err(Failure::new(format!("round {round}: {other}"))),
                }
            }
            // Go's shim may end before the winner's answer is on its way.
            let expected = if paths::is_go_shim() { winners } else { 1 };
            ensure_eq!(winners, expected, "successful deletes in round {round}");
            container.shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn exit_status_and_time_are_kept_while_nobody_listens() -> Result {
    scenario(async |fixture| {
        let mut sink = fixture.fake_containerd()?;
        let script = "mkfifo /tmp/go; read word < /tmp/go; exit 7";
        let container = Container::run(fixture, "a", &Spec::shell(script)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        sink.close();
        container
            .exec("e", &["sh", "-c", "until [ -p /tmp/go ]; do :; done; echo x > /tmp/go"])
            .await?;
        let exit = tasks.wait(id, "").await?;
        ensure_eq!(exit.exit_status, 7, "exit status");
        let state = tasks.state(id, "").await?;
        ensure_eq!(state.status.enum_value_or_default(), Status::STOPPED, "status");
        ensure_eq!(state.exited_at, exit.exited_at, "time of the end");
        sink.open()?;
        container.retire().await
    })
}

#[test]
fn container_can_be_deleted_without_having_been_started() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let spec = Spec::new(&["sleep", "1000"]);
        let container = Container::create(fixture, "a", &spec, &Stdio::null(), None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.kill(id, "", 9).await?;
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "exit status");
        ensure!(tasks.start(id, "").await.is_err(), "a dead container started");
        tasks.delete(id, "").await?;
        sink.wait_for_word(id, "delete").await?;
        ensure_eq!(sink.words(id)?, ["create", "exit", "delete"], "events");
        container.shim.shutdown(id).await?;
        container.shim.gone().await
    })
}

#[test]
fn unknown_ids_are_not_found() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let not_found = Some(Code::NOT_FOUND);
        let code = |error: Option<CallError>| error.and_then(|error| error.code());
        for (who, exec) in [("nobody", ""), (id, "no-exec")] {
            ensure_eq!(code(tasks.state(who, exec).await.err()), not_found, "state {who} {exec}");
            ensure_eq!(code(tasks.wait(who, exec).await.err()), not_found, "wait {who} {exec}");
            ensure_eq!(code(tasks.kill(who, exec, 9).await.err()), not_found, "kill {who} {exec}");
            ensure_eq!(code(tasks.delete(who, exec).await.err()), not_found, "delete {who} {exec}");
            ensure_eq!(code(tasks.start(who, exec).await.err()), not_found, "start {who} {exec}");
            ensure_eq!(code(tasks.resize(who, exec, 1, 1).await.err()), not_found, "resize {who}");
        }
        ensure_eq!(code(tasks.pids("nobody").await.err()), not_found, "pids");
        ensure_eq!(code(tasks.stats("nobody").await.err()), not_found, "stats");
        ensure_eq!(code(tasks.pause("nobody").await.err()), not_found, "pause");
        container.retire().await
    })
}

#[test]
fn running_container_cannot_be_deleted() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let error = tasks.delete(id, "").await.err().and_then(|error| error.code());
        ensure!(error.is_some() && error != Some(Code::NOT_FOUND), "{error:?}");
        ensure_eq!(status(tasks, id).await?, Status::RUNNING, "status");
        ensure!(tasks.start(id, "").await.is_err(), "started twice");
        container.retire().await
    })
}
