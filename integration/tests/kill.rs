//! Signals to containers, and what dies with them.

use std::fs;
use std::time::Duration;

use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::FakeRunc;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::spec::{self, Spec};
use integration::stdio::Stdio;
use integration::task::{Answer, Status};
use integration::{deadline, ensure, ensure_eq, paths};
use ttrpc::Code;

fn code<T>(answer: Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

#[test]
fn signal_reaches_init_and_decides_its_status() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let spec = Spec::shell("trap 'exit 42' TERM; while :; do usleep 10000; done");
        let container = Container::run(fixture, "a", &spec).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        // Until it has become the shell, init is a process of the runtime, which has an end of its own for signals.
        let comm = format!("/proc/{}/comm", tasks.state(id, "").await?.pid);
        let is_shell = || fs::read_to_string(&comm).is_ok_and(|name| !name.contains("run"));
        deadline::until("the runtime to become the shell", deadline::HANG, is_shell).await?;
        // The shell may not have come to its trap yet, and init of a pid namespace ignores what it does not handle.
        let waited = loop {
            tasks.kill(id, "", 15).await?;
            if let Ok(exit) = tasks.wait_for(id, "", Duration::from_millis(300)).await {
                break exit;
            }
        };
        ensure_eq!(waited.exit_status, 42, "exit status");
        container.retire().await
    })
}

#[test]
fn killed_process_has_status_of_128_and_the_signal() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for (name, signal) in [("term", 15), ("kill", 9), ("usr1", 10)] {
            container.exec(name, &["sleep", "1000"]).await?;
            // Until the runtime's own process has become the sleeper, it may swallow a signal.
            let exit = loop {
                let sent = tasks.kill(id, name, signal).await;
                match tasks.wait_for(id, name, Duration::from_millis(300)).await {
                    Ok(exit) => break exit,
                    Err(_) => sent?,
                };
            };
            ensure_eq!(exit.exit_status, 128 + signal, "{name}");
            ensure_eq!(code(tasks.kill(id, name, 9).await), Some(Code::NOT_FOUND), "second kill");
        }
        tasks.kill(id, "", 9).await?;
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "init");
        container.retire().await
    })
}

/// What each verb answers at each point of the life, for a runtime.
async fn verbs_by_state(
    fixture: &integration::fixture::Fixture,
    runtime: &std::path::PathBuf,
    name: &str,
) -> Result {
    let spec = Spec::new(&["sleep", "1000"]);
    let container =
        Container::run_with(fixture, name, &spec, &Stdio::null(), Some(runtime)).await?;
    let (id, tasks) = (container.id(), &container.shim.tasks);
    tasks.exec(id, "e", &spec::process(&["sleep", "1000"]), &Stdio::null()).await?;
    let early = code(tasks.kill(id, "e", 9).await);
    ensure_eq!(early, Some(Code::FAILED_PRECONDITION), "kill of an exec that is not started");
    tasks.start(id, "e").await?;
    ensure!(tasks.delete(id, "e").await.is_err(), "a running exec was deleted");
    tasks.kill(id, "", 9).await?;
    tasks.wait(id, "").await?;
    ensure_eq!(code(tasks.kill(id, "", 9).await), Some(Code::NOT_FOUND), "kill after the end");
    ensure!(container.exec("late", &["true"]).await.is_err(), "an exec in a stopped container");
    ensure!(tasks.pause(id).await.is_err(), "a stopped container was paused");
    ensure!(tasks.start(id, "").await.is_err(), "a stopped container started");
    tasks.delete(id, "").await?;
    ensure_eq!(code(tasks.kill(id, "", 9).await), Some(Code::NOT_FOUND), "kill after delete");
    ensure_eq!(code(tasks.delete(id, "").await), Some(Code::NOT_FOUND), "delete after delete");
    container.shim.shutdown(id).await?;
    container.shim.gone().await
}

#[test]
fn verbs_on_finished_things_have_the_codes_that_clients_know_with_every_runc() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (version, runtime) in paths::runtimes("runc") {
            let name = format!("runc{version}");
            verbs_by_state(fixture, &runtime, &name)
                .await
                .map_err(|failure| failure.context(name))?;
        }
        Ok(())
    })
}

#[test]
fn verbs_on_finished_things_have_the_codes_that_clients_know_with_every_crun() -> Result {
    integration::hybrid::free_unified_hierarchy()?;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (version, runtime) in paths::runtimes("crun") {
            let name = format!("crun{version}");
            verbs_by_state(fixture, &runtime, &name)
                .await
                .map_err(|failure| failure.context(name))?;
        }
        Ok(())
    })
}

#[test]
fn container_removed_behind_the_shims_back_is_not_found() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let root = format!("/run/containerd/runc/{}", fixture.namespace());
        let status = tokio::process::Command::new(paths::runc()?)
            .args(["--root", &root, "delete", "--force", id])
            .status()
            .await?;
        ensure!(status.success(), "{status}");
        tasks.wait(id, "").await?;
        ensure_eq!(code(tasks.kill(id, "", 9).await), Some(Code::NOT_FOUND), "kill");
        tasks.delete(id, "").await?;
        container.shim.shutdown(id).await?;
        container.shim.gone().await
    })
}

/// An init that leaves a sleeper behind when it ends.
const LEAVES_A_CHILD: &str = "sleep 1000 & exit 0";

#[test]
fn children_of_init_die_with_it_unless_the_kernel_sees_to_it() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install(fixture)?;
        let own = Spec::shell(LEAVES_A_CHILD);
        let host = own.clone().without_namespace("pid");
        let joined = own.clone().namespace_path("pid", "/proc/self/ns/pid");
        for (name, spec, needs_help) in
            [("own", own, false), ("host", host, true), ("joined", joined, true)]
        {
            let container =
                Container::run_with(fixture, name, &spec, &Stdio::null(), Some(&fake.path)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            tasks.wait(id, "").await?;
            let calls = fake.calls_of("kill")?;
            let all = calls.iter().any(|call| call.has("--all") && call.has(id));
            ensure_eq!(all, needs_help, "{name}: kill --all in {calls:?}");
            container.retire().await?;
        }
        Ok(())
    })
}

#[test]
fn orphans_of_execs_are_reaped_without_a_word() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(
            fixture,
            "a",
            // In the host's pid namespace, orphans come to the shim.
            &Spec::new(&["sleep", "1000"]).without_namespace("pid"),
        )
        .await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &["sh", "-c", "usleep 100000 & sleep 1000 & exit 0"]).await?;
        tasks.wait(id, "e").await?;
        let children = format!("/proc/{0}/task/{0}/children", container.shim.pid);
        let zombies = || {
            let pids = std::fs::read_to_string(&children).unwrap_or_default();
            let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.filter(|pid| !is_alive(*pid)).count()
        };
        let short = || {
            let pids = std::fs::read_to_string(&children).unwrap_or_default();
            pids.split_whitespace().any(|pid| {
                let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
                line.unwrap_or_default().starts_with("usleep")
            })
        };
        deadline::until("the orphan's end", deadline::HANG, || !short() && zombies() == 0).await?;
        sink.wait_for_word(id, "exit e").await?;
        let ends = sink.words(id)?.iter().filter(|word| word.starts_with("exit")).count();
        ensure_eq!(ends, 1, "ends in {:?}", sink.words(id)?);
        container.retire().await
    })
}

#[test]
fn paused_container_refuses_work_and_can_be_killed() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &["sleep", "1000"]).await?;
        ensure!(tasks.resume(id).await.is_err(), "a running container was resumed");
        tasks.pause(id).await?;
        for exec in ["", "e"] {
            let status = tasks.status(id, exec).await?.enum_value_or_default();
            ensure_eq!(status, Status::PAUSED, "status of {exec:?}");
        }
        ensure!(container.exec("late", &["true"]).await.is_err(), "an exec in a paused container");
        ensure!(tasks.pause(id).await.is_err(), "paused twice");
        ensure!(tasks.delete(id, "").await.is_err(), "a paused container was deleted");
        tasks.resume(id).await?;
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        tasks.pause(id).await?;
        tasks.kill(id, "", 9).await?;
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "exit status");
        sink.wait_for_word(id, "exit").await?;
        let words = sink.words(id)?;
        let count = |word: &str| words.iter().filter(|one| *one == word).count();
        ensure_eq!((count("paused"), count("resumed")), (2, 1), "{words:?}");
        container.retire().await
    })
}

#[test]
fn failing_pause_leaves_the_container_running() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&["sleep", "1000"]);
        let container =
            Container::run_with(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[integration::fakerunc::Rule::on("pause").fails("made to fail")])?;
        let error = tasks.pause(id).await.err().ok_or_else(|| Failure::new("paused"))?;
        ensure!(error.to_string().contains("made to fail"), "{error}");
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        container.exec("e", &["true"]).await?;
        container.retire().await
    })
}

#[test]
fn stopped_and_continued_children_neither_end_nor_spin_the_shim() -> Result {
    if paths::is_go_shim() {
        return skip("Go's runtime wakes up by itself");
    }
    scenario(async |fixture| {
        use integration::leak::Usage;
        use nix::sys::signal::{Signal, kill};
        use nix::unistd::Pid;
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &["true"]).await?;
        tasks.wait(id, "e").await?;
        let init = Pid::from_raw(container.pid.try_into()?);
        for _ in 0..20 {
            kill(init, Signal::SIGSTOP)?;
            kill(init, Signal::SIGCONT)?;
        }
        let before = Usage::of(container.shim.pid)?;
        // Ten times what one look at a signal costs would still be far below one tick a second.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let after = Usage::of(container.shim.pid)?;
        ensure!(after.ticks - before.ticks < 5, "{} ticks when idle", after.ticks - before.ticks);
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        container.retire().await
    })
}

#[test]
fn container_that_makes_orphans_without_end_is_answered_for_and_killed() -> Result {
    /// Loops that leave an orphan at each turn, as fast as they can.
    const FLOOD: &str = "for n in 1 2 3 4; do (while :; do (true &); done) & done; wait";
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            // In the host's pid namespace, orphans come to the shim.
            let spec = Spec::shell(FLOOD).without_namespace("pid");
            let none = Stdio::null();
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            for _ in 0..200 {
                ensure_eq!(tasks.status(id, "").await?, Status::RUNNING.into(), "{name}");
            }
            tasks.kill(id, "", 9).await?;
            ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "{name}");
            sink.wait_for_word(id, "exit").await?;
            container.retire().await?;
        }
        Ok(())
    })
}
