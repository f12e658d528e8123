//! Execs that outlast what they belong to: a container whose init ends among hundreds of them, a client that is gone.

use integration::cgroup::Cgroups;
use integration::container::Container;
use integration::event::Event;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::leak::Usage;
use integration::scenario::scenario;
use integration::shim::is_alive;
use integration::spec::{self, Spec};
use integration::stdio::{Input, Stdio};
use integration::task::{Status, TaskClient};
use integration::{deadline, ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinSet;
use ttrpc::Code;

/// How many execs are on their way when init is killed.
const EXECS: usize = 300;
/// And how many of these at a time.
const AT_ONCE: usize = 20;

#[test]
fn init_that_is_killed_among_hundreds_of_execs_is_told_last_and_once() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            // With the host's pid namespace the kernel ends nobody with init.
            let spec = Spec::new(&["sleep", "1000"]).without_namespace("pid");
            let none = Stdio::null();
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            let mut starts = JoinSet::new();
            for worker in 0..AT_ONCE {
                let (tasks, id) = (tasks.clone(), id.to_owned());
                starts.spawn(async move {
                    let mut refused = 0;
                    for number in 0..EXECS / AT_ONCE {
                        let exec = format!("e{worker}-{number}");
                        let process = spec::process(&["sleep", "1000"]);
                        // Once init has ended, no exec can be added or started any more.
                        let added = tasks.exec(&id, &exec, &process, &Stdio::null()).await;
                        let started = match added {
                            Ok(()) => tasks.start(&id, &exec).await.map(drop),
                            Err(error) => Err(error),
                        };
                        refused += usize::from(started.is_err());
                    }
                    refused
                });
            }
            sink.wait_for(id, "some execs", |events| started(events).len() >= AT_ONCE).await?;
            tasks.kill(id, "", 9).await?;
            ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "status, {name}");
            let refused: usize = starts.join_all().await.into_iter().sum();
            let events = sink.wait_for_word(id, "exit").await?;
            let began = started(&events);
            ensure_eq!(began.len() + refused, EXECS, "started and refused, {name}");
            let mut ends: Vec<String> = events.iter().filter_map(exit_of).collect();
            ensure_eq!(ends.pop().as_deref(), Some(id), "the last end, {name}");
            ends.sort_unstable();
            let mut right: Vec<String> = began.iter().map(|(id, _)| id.clone()).collect();
            right.sort_unstable();
            ensure_eq!(ends, right, "ends of execs, {name}");
            for (exec, pid) in began {
                ensure!(!is_alive(pid), "{exec} lives on, {name}");
            }
            container.retire().await?;
        }
        Ok(())
    })
}

#[test]
fn exec_that_comes_while_init_s_leftovers_are_ended_is_ended_too() -> Result {
    if paths::is_go_shim() {
        return integration::scenario::skip("Go's shims keep the end of init for such an exec's");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&["sleep", "1000"]).without_namespace("pid");
        let none = Stdio::null();
        let container = Container::run_with(fixture, "a", &spec, &none, Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let gate = Gate::new(fixture, "exec");
        let exec = Rule { gate_after: Some(gate.path.clone()), ..Rule::on("exec") };
        // What is listed to be killed lacks what joins the container just now: nothing, here.
        fake.obey(&[exec, Rule::on("kill").succeeds()])?;
        tasks.exec(id, "late", &spec::process(&["sleep", "1000"]), &none).await?;
        let mut starts = JoinSet::new();
        let (client, container_id) = (tasks.clone(), id.to_owned());
        starts.spawn(async move { client.start(&container_id, "late").await });
        gate.reached().await?;
        let init = Pid::from_raw(i32::try_from(tasks.state(id, "").await?.pid)?);
        kill(init, Signal::SIGKILL)?;
        let is_killed = || fake.calls_of("kill").is_ok_and(|calls| !calls.is_empty());
        deadline::until("what init left to be killed", deadline::HANG, is_killed).await?;
        gate.open()?;
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "status of init");
        while let Some(started) = starts.join_next().await {
            ensure!(!is_alive(started??), "the exec lives on");
        }
        let events = sink.wait_for_word(id, "exit").await?;
        let ends: Vec<String> = events.iter().filter_map(exit_of).collect();
        ensure_eq!(ends, ["late", id], "ends");
        container.retire().await
    })
}

fn started(events: &[Event]) -> Vec<(String, u32)> {
    let started = events.iter().filter_map(|event| match event {
        Event::ExecStarted { exec, pid, .. } => Some((exec.clone(), *pid)),
        _ => None,
    });
    started.collect()
}

fn exit_of(event: &Event) -> Option<String> {
    match event {
        Event::Exit(exit) => Some(exit.process.clone()),
        _ => None,
    }
}

#[test]
fn exec_whose_client_is_gone_is_seen_and_ended_by_the_next_one() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, shim) = (container.id(), &container.shim);
        let before = Usage::of(shim.pid)?;
        for round in 0..5 {
            let exec = format!("e{round}");
            let stdio = fixture.fifos(&exec)?;
            let first = TaskClient::connect(
                &shim.started.address,
                shim.started.service(),
                fixture.namespace(),
            )
            .await?;
            first.exec(id, &exec, &spec::process(&["cat"]), &stdio).await?;
            first.start(id, &exec).await?;
            let mut input = Input::open(&stdio.stdin).await?;
            input.write(b"anybody there\n").await?;
            // The client goes, with its connection and its end of the streams, and says nothing.
            drop((input, first));
            let status = shim.tasks.status(id, &exec).await?.enum_value_or_default();
            ensure_eq!(status, Status::RUNNING, "status");
            shim.tasks.kill(id, &exec, 9).await?;
            ensure_eq!(shim.tasks.wait(id, &exec).await?.exit_status, 137, "exit status");
            if paths::is_go_shim() {
                shim.tasks.delete(id, &exec).await?;
                continue;
            }
            // Its output was never read: delete waits for a reader for a while, and then goes on.
            drop(integration::stdio::collect(&stdio.stdout)?);
            shim.tasks.delete(id, &exec).await?;
            let code = shim.tasks.state(id, &exec).await.err().and_then(|error| error.code());
            ensure_eq!(code, Some(Code::NOT_FOUND), "after delete");
        }
        let grown = || Usage::of(shim.pid).is_ok_and(|now| now.fds.len() <= before.fds.len() + 2);
        deadline::until("descriptors to be closed", deadline::HANG, grown).await?;
        container.retire().await
    })
}

#[test]
fn exec_that_the_runtime_does_not_end_with_init_is_ended_all_the_same() -> Result {
    if paths::is_go_shim() {
        return integration::scenario::skip("Go's shims wait for its end for ever");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&["sleep", "1000"]).without_namespace("pid");
        for (name, rule) in [
            ("fails", Rule::on("kill").fails("not today")),
            ("lies", Rule::on("kill").succeeds()),
            // One that is in another cgroup by then is not found by any runtime.
            ("moved", Rule::on("none")),
        ] {
            fake.obey(&[])?;
            let none = Stdio::null();
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&fake.path)).await?;
            let exec = container.exec("e", &["sleep", "1000"]).await?;
            fake.obey(&[rule])?;
            if name == "moved" {
                let own = Cgroups::of(std::process::id())?;
                for dir in own.dirs() {
                    std::fs::write(dir.join("cgroup.procs"), exec.to_string())?;
                }
            }
            kill(Pid::from_raw(i32::try_from(container.pid)?), Signal::SIGKILL)?;
            let events = sink.wait_for_word(container.id(), "exit").await?;
            let ends: Vec<String> = events.iter().filter_map(exit_of).collect();
            ensure_eq!(ends, ["e", container.id()], "{name}: ends");
            ensure!(!is_alive(exec), "{name}: the exec lives on");
            fake.obey(&[])?;
            container.retire().await?;
        }
        Ok(())
    })
}
