//! Kills for lack of memory: told once each, before the end of what they hit, and of nothing else.

use std::path::Path;

use integration::bundle::Bundle;
use integration::cgroup::Cgroups;
use integration::container::{Container, with_runtime};
use integration::failure::Result;
use integration::fakectrd::FakeContainerd;
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::fixture::Fixture;
use integration::hybrid::both_runtimes;
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, is_alive};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::{deadline, ensure, ensure_eq, paths};

const SLEEP: [&str; 2] = ["sleep", "1000"];

/// A last line that never ends: busybox keeps all of it in memory.
const HUNGRY: [&str; 2] = ["tail", "/dev/zero"];

/// Enough for a runtime's init, and soon used up.
const LIMIT: u64 = 24 << 20;

fn hungry() -> Spec {
    Spec::new(&HUNGRY).memory_limit(LIMIT)
}

fn count(sink: &FakeContainerd, id: &str, word: &str) -> Result<usize> {
    Ok(sink.words(id)?.iter().filter(|one| *one == word).count())
}

#[test]
fn kill_of_init_is_told_once_and_before_its_end() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not promise the order");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let tmpfs = ["dd", "if=/dev/zero", "of=/tmp/file", "bs=1M", "count=100"];
        for (name, runtime) in both_runtimes()? {
            for (kind, argv) in [("heap", &HUNGRY[..]), ("tmpfs", &tmpfs[..])] {
                let spec = Spec::new(argv).memory_limit(LIMIT);
                let (name, none) = (format!("{name}-{kind}"), Stdio::null());
                let container =
                    Container::run_with(fixture, &name, &spec, &none, Some(&runtime)).await?;
                let (id, tasks) = (container.id(), &container.shim.tasks);
                ensure_eq!(tasks.wait(id, "").await?.exit_status, 137, "{name}");
                container.retire().await?;
                let right = ["create", "start", "oom", "exit", "delete"];
                ensure_eq!(sink.words(id)?, right, "events of {name}");
            }
        }
        Ok(())
    })
}

#[test]
fn kill_during_a_start_is_told_after_it() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not promise the order");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let (spec, none) = (hungry(), Stdio::null());
        let container = Container::create(fixture, "a", &spec, &none, Some(&fake.path)).await?;
        let (id, tasks) = (container.id().to_owned(), container.shim.tasks.clone());
        let gate = Gate::new(fixture, "start");
        fake.obey(&[Rule { gate_after: Some(gate.path.clone()), ..Rule::on("start") }])?;
        let pid = tasks.state(&id, "").await?.pid;
        let start = tokio::spawn({
            let (id, tasks) = (id.clone(), tasks.clone());
            async move { tasks.start(&id, "").await }
        });
        gate.reached().await?;
        deadline::until("the end of init", deadline::HANG, || !is_alive(pid)).await?;
        // An answer means that the shim has seen what was there before it was asked.
        tasks.state(&id, "").await?;
        gate.open()?;
        start.await??;
        tasks.wait(&id, "").await?;
        container.retire().await?;
        ensure_eq!(sink.words(&id)?, ["create", "start", "oom", "exit", "delete"], "events");
        Ok(())
    })
}

/// A container in somebody else's shim.
async fn join(fixture: &Fixture, first: &Container, name: &str, spec: &Spec) -> Result<Bundle> {
    let bundle = fixture.bundle(name, spec)?;
    let tasks = &first.shim.tasks;
    tasks.create(&bundle, &Stdio::null()).await?;
    tasks.start(&bundle.id, "").await?;
    Ok(bundle)
}

#[test]
fn twenty_that_die_at_once_in_one_shim_are_told_each() -> Result {
    const ROUNDS: usize = 20;
    if paths::is_go_shim() {
        return skip("Go's shims do not promise the order");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let group = fixture.id("g");
        let grouped = |spec: Spec| spec.annotation("io.containerd.runc.v2.group", &group);
        let first = Container::run(fixture, "p", &grouped(Spec::new(&SLEEP))).await?;
        let tasks = &first.shim.tasks;
        for round in 0..ROUNDS {
            let bundle = join(fixture, &first, &format!("o{round}"), &grouped(hungry())).await?;
            ensure_eq!(tasks.wait(&bundle.id, "").await?.exit_status, 137, "round {round}");
            tasks.delete(&bundle.id, "").await?;
            sink.wait_for_word(&bundle.id, "delete").await?;
            let right = ["create", "start", "oom", "exit", "delete"];
            ensure_eq!(sink.words(&bundle.id)?, right, "events of round {round}");
        }
        ensure_eq!(count(&sink, first.id(), "oom")?, 0, "events of the one that only sleeps");
        first.retire().await
    })
}

#[test]
fn ends_with_memory_to_spare_are_no_lack_of_it() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let group = fixture.id("g");
        let limited = |argv: &[&str]| {
            let spec = Spec::new(argv).memory_limit(LIMIT);
            spec.annotation("io.containerd.runc.v2.group", &group)
        };
        let first = Container::run(fixture, "p", &limited(&SLEEP)).await?;
        let tasks = &first.shim.tasks;
        for (name, argv, status) in [
            ("true", &["true"][..], 0),
            ("false", &["false"][..], 1),
            // The status of a kill, without one.
            ("like-killed", &["sh", "-c", "exit 137"][..], 137),
            ("killed", &SLEEP[..], 137),
        ] {
            let bundle = join(fixture, &first, name, &limited(argv)).await?;
            if name == "killed" {
                tasks.kill(&bundle.id, "", 9).await?;
            }
            ensure_eq!(tasks.wait(&bundle.id, "").await?.exit_status, status, "{name}");
            tasks.delete(&bundle.id, "").await?;
            sink.wait_for_word(&bundle.id, "delete").await?;
            ensure_eq!(count(&sink, &bundle.id, "oom")?, 0, "kills told of {name}");
        }
        first.exec("e", &["true"]).await?;
        tasks.wait(first.id(), "e").await?;
        first.retire().await?;
        ensure_eq!(count(&sink, first.id(), "oom")?, 0, "kills told of the one with an exec");
        Ok(())
    })
}

#[test]
fn kill_of_another_process_is_told_and_the_container_goes_on() -> Result {
    if paths::is_go_shim() {
        return skip("measured for the shim of this workspace");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let spec = Spec::new(&SLEEP).memory_limit(LIMIT);
            let none = Stdio::null();
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            for number in 1..=3 {
                let exec = format!("e{number}");
                container.exec(&exec, &HUNGRY).await?;
                ensure_eq!(tasks.wait(id, &exec).await?.exit_status, 137, "{name}");
                tasks.delete(id, &exec).await?;
                let what = format!("kill {number} with {name}");
                let told = |events: &[integration::event::Event]| {
                    events.iter().filter(|event| event.word() == "oom").count() >= number
                };
                sink.wait_for(id, &what, told).await?;
            }
            container.exec("fine", &["true"]).await?;
            ensure_eq!(tasks.wait(id, "fine").await?.exit_status, 0, "an exec afterwards");
            container.retire().await?;
            ensure_eq!(count(&sink, id, "oom")?, 3, "kills told with {name}");
        }
        Ok(())
    })
}

#[test]
fn kill_of_a_child_is_told_before_init_ends_by_itself() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not promise the order");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let spec = Spec::shell("tail /dev/zero; exit 7").memory_limit(LIMIT);
        let container = Container::run(fixture, "a", &spec).await?;
        let waited = container.shim.tasks.wait(container.id(), "").await?;
        ensure_eq!(waited.exit_status, 7, "exit status");
        container.retire().await?;
        let right = ["create", "start", "oom", "exit", "delete"];
        ensure_eq!(sink.words(container.id())?, right, "events");
        Ok(())
    })
}

/// Two containers without limits of their own, below one that their parent has.
async fn below_one_limit(fixture: &Fixture, name: &str, runtime: &Path) -> Result {
    let sink = fixture.fake_containerd()?;
    let make = async |spec: Spec, who: &str| -> Result<(Bundle, integration::shim::Shim)> {
        let bundle = fixture.bundle(&format!("{name}-{who}"), &spec)?;
        // A namespace's cgroup is a place where tests may put containers.
        let path = format!("/{}/{}", fixture.namespace(), bundle.id);
        bundle.respecify("/linux/cgroupsPath", path.into())?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = Some(with_runtime(runtime)?);
        shim.tasks.create_with(&bundle, &Stdio::null(), options).await?;
        Ok((bundle, shim))
    };
    let (quiet, quiet_shim) = make(Spec::new(&SLEEP), "quiet").await?;
    let pid = quiet_shim.tasks.start(&quiet.id, "").await?;
    let (hungry, hungry_shim) = make(Spec::new(&HUNGRY), "hungry").await?;
    let cgroups = Cgroups::of(pid)?;
    let parent = cgroups.dir("memory")?.parent().unwrap_or(cgroups.dir("memory")?);
    let file = if cgroups.is_unified() { "memory.max" } else { "memory.limit_in_bytes" };
    std::fs::write(parent.join(file), LIMIT.to_string())?;
    hungry_shim.tasks.start(&hungry.id, "").await?;
    ensure_eq!(hungry_shim.tasks.wait(&hungry.id, "").await?.exit_status, 137, "exit status");
    hungry_shim.retire(&hungry.id).await?;
    hungry_shim.gone().await?;
    ensure!(integration::shim::is_alive(pid), "the neighbour was killed instead");
    quiet_shim.retire(&quiet.id).await?;
    quiet_shim.gone().await?;
    let right = ["create", "start", "oom", "exit", "delete"];
    ensure_eq!(sink.words(&hungry.id)?, right, "events of the killed one, {name}");
    ensure_eq!(count(&sink, &quiet.id, "oom")?, 0, "kills told of its neighbour, {name}");
    Ok(())
}

#[test]
fn kill_by_the_limit_of_a_parent_is_told_of_the_killed_one_alone() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims tell of every container below the limit");
    }
    let runtimes = both_runtimes()?;
    for (name, runtime) in &runtimes {
        scenario(async |fixture| below_one_limit(fixture, name, runtime).await)?;
    }
    Ok(())
}
