//! Further processes in a container: their order among each other and towards init, and their ids.

use std::time::Duration;

use integration::container::Container;
use integration::event::Event;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::leak::Usage;
use integration::paths;
use integration::scenario::{scenario, skip};
use integration::spec::{self, Spec};
use integration::stdio::Stdio;
use integration::task::{Answer, Status};
use integration::{deadline, ensure, ensure_eq};
use ttrpc::Code;

fn code<T>(answer: Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

/// Of every exec among the events: added, started, ended, once each and in this order; init's end is the last end.
fn check_order(events: &[Event]) -> Result {
    let words: Vec<String> = events.iter().map(Event::word).collect();
    let at = |word: &str| words.iter().position(|one| one == word);
    for word in &words {
        let times = words.iter().filter(|one| *one == word).count();
        ensure_eq!(times, 1, "number of {word:?} in {words:?}");
        if let Some(exec) = word.strip_prefix("exec-started ") {
            let added = at(&format!("exec-added {exec}"));
            let started = at(word);
            let ended = at(&format!("exit {exec}"));
            ensure!(ended.is_some(), "no end of {exec} in {words:?}");
            ensure!(added < started && started < ended, "order of {exec} in {words:?}");
        }
    }
    if let Some(end) = at("exit") {
        let late: Vec<&String> =
            words.iter().skip(end + 1).filter(|w| w.starts_with("exit")).collect();
        ensure!(late.is_empty(), "{late:?} after init's in {words:?}");
    }
    Ok(())
}

#[test]
fn exec_runs_and_reports_its_own_status() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.exec(id, "e", &spec::process(&["sh", "-c", "exit 3"]), &Stdio::null()).await?;
        ensure_eq!(tasks.status(id, "e").await?.enum_value_or_default(), Status::CREATED, "status");
        let pid = tasks.start(id, "e").await?;
        ensure!(pid > 0 && pid != container.pid, "pid {pid}");
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 3, "exit status");
        let state = tasks.state(id, "e").await?;
        ensure_eq!(state.status.enum_value_or_default(), Status::STOPPED, "status");
        ensure_eq!((state.id.as_str(), state.pid), ("e", pid), "state");
        let deleted = tasks.delete(id, "e").await?;
        ensure_eq!((deleted.pid, deleted.exit_status), (pid, 3), "delete");
        ensure_eq!(code(tasks.state(id, "e").await), Some(Code::NOT_FOUND), "state after delete");
        sink.wait_for_word(id, "exit e").await?;
        let words = sink.words(id)?;
        ensure_eq!(
            words,
            ["create", "start", "exec-added e", "exec-started e", "exit e"],
            "events"
        );
        ensure!(container.bundle.file("e.exec.pid").is_none(), "the pid file stays");
        container.retire().await
    })
}

#[test]
fn many_short_execs_at_once_all_start_before_they_end() -> Result {
    const AT_ONCE: usize = 30;
    const ROUNDS: usize = 3;
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        for round in 0..ROUNDS {
            let names: Vec<String> = (0..AT_ONCE).map(|n| format!("e{round}x{n}")).collect();
            let mut runs = tokio::task::JoinSet::new();
            for name in names {
                let (tasks, id) = (container.shim.tasks.clone(), container.id().to_owned());
                runs.spawn(async move {
                    let process = spec::process(&["true"]);
                    tasks.exec(&id, &name, &process, &Stdio::null()).await?;
                    let pid = tasks.start(&id, &name).await?;
                    let exit = tasks.wait(&id, &name).await?;
                    tasks.delete(&id, &name).await?;
                    Answer::Ok((pid, exit.exit_status))
                });
            }
            while let Some(run) = runs.join_next().await {
                let (pid, status) = run??;
                ensure!(pid > 0 && status == 0, "pid {pid}, status {status}");
            }
        }
        let all = |events: &[Event]| {
            let ends = events.iter().filter(|event| matches!(event, Event::Exit(_))).count();
            ends == AT_ONCE * ROUNDS
        };
        check_order(&sink.wait_for(container.id(), "all ends", all).await?)?;
        container.retire().await
    })
}

#[test]
fn ends_of_execs_are_published_before_inits() -> Result {
    const ROUNDS: usize = 20;
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for round in 0..ROUNDS {
            let spec = Spec::shell(&format!("usleep {}", 20_000 + round * 4_000));
            let container = Container::run(fixture, &format!("r{round}"), &spec).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            let exec = async {
                // Refused once init has ended: that is what the order rests on.
                let started = container.exec("e", &["true"]).await;
                started.map(drop).or_else(|error| match error.code() {
                    Some(_) => Ok(()),
                    None => Err(error),
                })
            };
            let (done, ended) = tokio::join!(exec, tasks.wait(id, ""));
            done?;
            ended?;
            check_order(&sink.wait_for_word(id, "exit").await?)?;
            container.retire().await?;
            check_order(&sink.events(id)?)?;
        }
        Ok(())
    })
}

#[test]
fn exec_is_refused_once_init_has_ended_and_init_waits_for_those_on_their_way() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 1.7.2x publish init's end first");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&["sleep", "1000"]).without_namespace("pid");
        let container =
            Container::run_with(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let gate = Gate::new(fixture, "exec");
        // The exec's process exists when the gate is reached; it outlives init, whose pid namespace is the host's.
        fake.obey(&[Rule { gate_after: Some(gate.path.clone()), ..Rule::on("exec") }])?;
        for name in ["e1", "e2"] {
            let process = spec::process(&["sleep", "1000"]);
            tasks.exec(id, name, &process, &Stdio::null()).await?;
        }
        let first = {
            let (tasks, id) = (tasks.clone(), id.to_owned());
            tokio::spawn(async move { tasks.start(&id, "e1").await })
        };
        gate.reached().await?;
        tasks.kill(id, "", 9).await?;
        let refused = deadline::until("init's death", deadline::HANG, || {
            !integration::shim::is_alive(container.pid)
        });
        refused.await?;
        let mut answer = tasks.start(id, "e2").await;
        // The shim may not have reaped init yet: then the exec is let in, and is one more to be waited for.
        if answer.is_ok() {
            answer = container.exec("e3", &["true"]).await;
        }
        ensure_eq!(code(answer), Some(Code::FAILED_PRECONDITION), "start after init's end");
        ensure!(!sink.words(id)?.contains(&"exit".to_owned()), "init's end came first");
        gate.open()?;
        first.await??;
        tasks.wait(id, "").await?;
        check_order(&sink.wait_for_word(id, "exit").await?)?;
        container.retire().await
    })
}

#[test]
fn runtime_that_hangs_in_an_exec_does_not_keep_inits_end_for_ever() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims wait for such an exec for ever");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&["sleep", "1000"]);
        let container =
            Container::run_with(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let gate = Gate::new(fixture, "exec");
        fake.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("exec") }])?;
        tasks.exec(id, "e", &spec::process(&["true"]), &Stdio::null()).await?;
        let hung = {
            let (tasks, id) = (tasks.clone(), id.to_owned());
            tokio::spawn(async move { tasks.start(&id, "e").await })
        };
        gate.reached().await?;
        tasks.kill(id, "", 9).await?;
        // The gate stays closed: the shim ends the runtime's process, as the check for leaks will see.
        sink.wait_for_word(id, "exit").await?;
        ensure_eq!(code(hung.await?), Some(Code::FAILED_PRECONDITION), "the start that hung");
        container.retire().await
    })
}

#[test]
fn of_two_execs_with_one_id_one_wins() -> Result {
    const AT_ONCE: usize = 50;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let (tasks, id) = (container.shim.tasks.clone(), container.id().to_owned());
            calls.spawn(async move {
                tasks.exec(&id, "e", &spec::process(&["true"]), &Stdio::null()).await
            });
        }
        let mut winners = 0;
        while let Some(call) = calls.join_next().await {
            match call? {
                Ok(()) => winners += 1,
                answer => ensure_eq!(code(answer), Some(Code::ALREADY_EXISTS), "loser"),
            }
        }
        ensure_eq!(winners, 1, "winners");
        container.retire().await
    })
}

#[test]
fn failed_start_of_an_exec_ends_its_waits_and_frees_its_id() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for round in 0..3 {
            let process = spec::process(&["no-such-program"]);
            tasks.exec(id, "e", &process, &Stdio::null()).await?;
            let waiting = {
                let (tasks, id) = (tasks.clone(), id.to_owned());
                tokio::spawn(async move { tasks.wait(&id, "e").await })
            };
            let answer = tasks.start(id, "e").await;
            let error = answer.err().ok_or_else(|| Failure::new("the start succeeded"))?;
            ensure!(error.to_string().contains("no-such-program"), "{error}");
            waiting
                .await?
                .map_err(|error| Failure::new(format!("wait in round {round}: {error}")))?;
            tasks.wait(id, "e").await?;
            tasks.delete(id, "e").await?;
        }
        container.exec("e", &["true"]).await?;
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 0, "exit status");
        sink.wait_for_word(id, "exit e").await?;
        let ends = sink.words(id)?.iter().filter(|word| word.starts_with("exit")).count();
        ensure_eq!(ends, 1, "ends in {:?}", sink.words(id)?);
        container.retire().await
    })
}

#[test]
fn second_failing_start_of_an_exec_is_an_error_again() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim crashes on it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.exec(id, "e", &spec::process(&["no-such-program"]), &Stdio::null()).await?;
        ensure!(tasks.start(id, "e").await.is_err(), "the first start succeeded");
        ensure!(tasks.start(id, "e").await.is_err(), "the second start succeeded");
        ensure!(container.shim.is_alive(), "the shim is gone");
        container.retire().await
    })
}

#[test]
fn exec_can_be_added_to_a_container_that_is_not_started() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let spec = Spec::new(&["sleep", "1000"]);
        let container = Container::create(fixture, "a", &spec, &Stdio::null(), None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &["true"]).await?;
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 0, "exit status");
        tasks.start(id, "").await?;
        container.retire().await
    })
}

#[test]
fn exec_that_never_started_can_be_deleted() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.exec(id, "e", &spec::process(&["true"]), &Stdio::null()).await?;
        let deleted = tasks.delete(id, "e").await?;
        ensure_eq!((deleted.pid, deleted.exit_status), (0, 0), "delete");
        tasks.exec(id, "e", &spec::process(&["true"]), &Stdio::null()).await?;
        container.retire().await
    })
}

#[test]
fn wait_answers_again_and_again_until_delete() -> Result {
    const AT_ONCE: usize = 100;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &["sh", "-c", "read x < /tmp/f; exit 5"]).await.ok();
        let mut waits = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let (tasks, id) = (tasks.clone(), id.to_owned());
            waits.spawn(async move { tasks.wait(&id, "").await });
        }
        tasks.kill(id, "", 9).await?;
        let stored = tasks.wait(id, "").await?;
        while let Some(wait) = waits.join_next().await {
            let answer = wait??;
            ensure_eq!(answer.exited_at, stored.exited_at, "time of the end");
            ensure_eq!(answer.exit_status, 137, "exit status");
        }
        container.retire().await
    })
}

#[test]
fn waits_whose_client_went_away_leave_nothing_behind() -> Result {
    const WAITS: usize = 300;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, shim) = (container.id(), &container.shim);
        let before = Usage::of(shim.pid)?;
        for _ in 0..WAITS {
            let limit = Duration::from_millis(5);
            ensure!(shim.tasks.wait_for(id, "", limit).await.is_err(), "a running init has ended");
        }
        let what = "files and threads as before";
        deadline::until(what, deadline::HANG, || {
            Usage::of(shim.pid).is_ok_and(|now| {
                now.fds.len() <= before.fds.len() + 2 && now.threads <= before.threads + 2
            })
        })
        .await?;
        container.retire().await
    })
}

#[test]
fn files_and_threads_do_not_grow_with_execs() -> Result {
    const CYCLES: usize = 60;
    if paths::is_go_shim() {
        return skip("Go's shim takes 10 s to delete an exec that did not start");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let cycle = async |name: &str, argv: &[&str], terminal: bool| {
            let mut stdio = fixture.fifos(name)?;
            if terminal {
                stdio.terminal = true;
                stdio.stderr.clear();
            }
            let output = integration::stdio::collect(&stdio.stdout)?;
            let started = container.exec_with(name, argv, &stdio).await;
            if started.is_ok() {
                tasks.wait(id, name).await?;
            }
            tasks.delete(id, name).await?;
            drop(output);
            Result::Ok(())
        };
        cycle("warm", &["true"], false).await?;
        cycle("warm-tty", &["true"], true).await?;
        let before = Usage::of(container.shim.pid)?;
        for round in 0..CYCLES {
            cycle(&format!("p{round}"), &["true"], false).await?;
            cycle(&format!("t{round}"), &["true"], true).await?;
            cycle(&format!("f{round}"), &["no-such-program"], false).await?;
        }
        let mut last = before.clone();
        let fits = || {
            last = Usage::of(container.shim.pid).unwrap_or_else(|_| before.clone());
            last.fds.len() <= before.fds.len() + 2 && last.threads <= before.threads + 2
        };
        let steady = deadline::until("files and threads as before", deadline::HANG, fits).await;
        steady
            .map_err(|failure| failure.context(format!("{:?}, then {:?}", before.fds, last.fds)))?;
        container.retire().await
    })
}
