//! Metrics: of the right kind for the host, and what the cgroup's files say.

use std::path::PathBuf;
use std::time::Duration;

use containerd_shim_protos::cgroups::metrics::Metrics as MetricsV1;
use containerd_shim_protos::cgroups_v2::metrics::Metrics as MetricsV2;
use containerd_shim_protos::protobuf::Message;
use integration::cgroup::Cgroups;
use integration::container::Container;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::fixture::Fixture;
use integration::hybrid::both_runtimes;
use integration::scenario::{scenario, skip};
use integration::shim::Launch;
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Status, TaskClient};
use integration::{deadline, ensure, ensure_eq, paths};
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];
const LIMIT: u64 = 64 << 20;

/// What both kinds of metrics have, in the units of v1.
#[derive(Debug, PartialEq, Eq)]
struct Metrics {
    pids: u64,
    memory: u64,
    memory_limit: u64,
    cpu_nanos: u64,
}

async fn metrics(tasks: &TaskClient, id: &str, unified: bool) -> Result<Metrics> {
    let stats = tasks.stats(id).await?.stats.unwrap_or_default();
    let name = if unified { "v2" } else { "v1" };
    ensure_eq!(stats.type_url, format!("io.containerd.cgroups.{name}.Metrics"), "type");
    if unified {
        let metrics = MetricsV2::parse_from_bytes(&stats.value)?;
        return Ok(Metrics {
            pids: metrics.pids.current,
            memory: metrics.memory.usage,
            memory_limit: metrics.memory.usage_limit,
            cpu_nanos: metrics.cpu.usage_usec * 1000,
        });
    }
    let metrics = MetricsV1::parse_from_bytes(&stats.value)?;
    Ok(Metrics {
        pids: metrics.pids.current,
        memory: metrics.memory.usage.usage,
        memory_limit: metrics.memory.usage.limit,
        cpu_nanos: metrics.cpu.usage.total,
    })
}

/// The same from the cgroup's files.
fn files(cgroups: &Cgroups) -> Result<Metrics> {
    let unified = cgroups.is_unified();
    let memory = |v1: &str, v2: &str| cgroups.number("memory", if unified { v2 } else { v1 });
    let cpu_nanos = if unified {
        let stat = cgroups.text("cpu", "cpu.stat")?;
        let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
        line.unwrap_or("0").parse::<u64>()? * 1000
    } else {
        cgroups.number("cpuacct", "cpuacct.usage")?
    };
    Ok(Metrics {
        pids: cgroups.number("pids", "pids.current")?,
        memory: memory("memory.usage_in_bytes", "memory.current")?,
        memory_limit: memory("memory.limit_in_bytes", "memory.max")?,
        cpu_nanos,
    })
}

fn code<T>(answer: integration::task::Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

async fn compare(fixture: &Fixture, name: &str, runtime: &PathBuf) -> Result {
    /// The kernel charges memory in batches and frees it late.
    const BLUR: u64 = 512 << 10;
    let (spec, none) = (Spec::new(&SLEEP).memory_limit(LIMIT), Stdio::null());
    let container = Container::run_with(fixture, name, &spec, &none, Some(runtime)).await?;
    let (id, tasks) = (container.id(), &container.shim.tasks);
    let cgroups = Cgroups::of(container.pid)?;
    for processes in 1..=3 {
        if processes > 1 {
            container.exec(&format!("e{processes}"), &SLEEP).await?;
        }
        // The runtime's own processes have to be gone.
        deadline::until("processes in the cgroup", deadline::HANG, || {
            files(&cgroups).is_ok_and(|files| files.pids == processes)
        })
        .await?;
        let before = files(&cgroups)?;
        let told = metrics(tasks, id, cgroups.is_unified()).await?;
        let after = files(&cgroups)?;
        ensure_eq!(told.pids, processes, "processes, {name}");
        ensure_eq!(told.memory_limit, LIMIT, "memory limit, {name}");
        ensure!(told.cpu_nanos > 0 && told.memory > 0, "nothing used: {told:?}");
        ensure!(
            before.cpu_nanos <= told.cpu_nanos && told.cpu_nanos <= after.cpu_nanos,
            "processor time {} is not between {} and {}, {name}",
            told.cpu_nanos,
            before.cpu_nanos,
            after.cpu_nanos
        );
        let low = before.memory.min(after.memory).saturating_sub(BLUR);
        let high = before.memory.max(after.memory) + BLUR;
        ensure!(
            low <= told.memory && told.memory <= high,
            "memory {} is not between {low} and {high}, {name}",
            told.memory
        );
    }
    container.retire().await
}

#[test]
fn metrics_are_of_the_hosts_kind_and_equal_the_files() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            compare(fixture, name, &runtime).await?;
        }
        Ok(())
    })
}

#[test]
fn metrics_grow_with_what_is_used() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let spec = Spec::shell("head -c 8000000 /dev/zero >/tmp/file; while :; do :; done");
        let container = Container::run(fixture, "a", &spec.memory_limit(LIMIT)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let unified = Cgroups::of(container.pid)?.is_unified();
        let used = async || metrics(tasks, id, unified).await;
        let start = std::time::Instant::now();
        loop {
            let now = used().await?;
            if now.memory > 8_000_000 && now.cpu_nanos > 200_000_000 {
                break;
            }
            ensure!(start.elapsed() < deadline::HANG, "still {now:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        container.retire().await
    })
}

#[test]
fn frozen_container_has_metrics() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let (spec, none) = (Spec::new(&SLEEP).memory_limit(LIMIT), Stdio::null());
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            tasks.pause(id).await?;
            ensure_eq!(
                tasks.status(id, "").await?.enum_value_or_default(),
                Status::PAUSED,
                "{name}"
            );
            let unified = Cgroups::of(container.pid)?.is_unified();
            let told = metrics(tasks, id, unified).await?;
            ensure_eq!((told.pids, told.memory_limit), (1, LIMIT), "{name}");
            tasks.resume(id).await?;
            container.retire().await?;
        }
        Ok(())
    })
}

#[test]
fn created_container_has_metrics() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let (spec, none) = (Spec::new(&SLEEP).memory_limit(LIMIT), Stdio::null());
        let container = Container::create(fixture, "a", &spec, &none, None).await?;
        let unified = Cgroups::of(container.pid)?.is_unified();
        let told = metrics(&container.shim.tasks, container.id(), unified).await?;
        ensure!(told.pids > 0 && told.memory_limit == LIMIT, "{told:?}");
        container.retire().await
    })
}

#[test]
fn what_has_no_cgroup_is_not_found() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let (spec, none) = (Spec::new(&SLEEP), Stdio::null());
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            let cgroups = Cgroups::of(container.pid)?;
            ensure_eq!(code(tasks.stats("nobody").await), Some(Code::NOT_FOUND), "of nobody");
            tasks.kill(id, "", 9).await?;
            tasks.wait(id, "").await?;
            // The cgroup lasts until the delete, or not, as the runtime likes.
            let ended = tasks.stats(id).await;
            ensure!(ended.is_ok() || code(ended) == Some(Code::NOT_FOUND), "after the end, {name}");
            // In hierarchies that the runtime does not know, the container is where its shim is.
            for dir in cgroups.dirs().into_iter().filter(|dir| dir.ends_with(id)) {
                let gone = || matches!(std::fs::remove_dir(dir), Ok(())) || !dir.exists();
                deadline::until("an empty cgroup", deadline::HANG, gone).await?;
            }
            let gone = code(tasks.stats(id).await);
            // Go's shims report zeros.
            if !paths::is_go_shim() {
                ensure_eq!(gone, Some(Code::NOT_FOUND), "cgroup gone, {name}");
            }
            tasks.delete(id, "").await?;
            ensure_eq!(code(tasks.stats(id).await), Some(Code::NOT_FOUND), "deleted, {name}");
            container.shim.shutdown(id).await?;
            container.shim.gone().await?;
        }
        Ok(())
    })
}

/// Moves a process to the top of every hierarchy; where those are.
fn to_the_top(pid: u32) -> Result<Vec<PathBuf>> {
    let cgroups = Cgroups::of(pid)?;
    let mut tops = Vec::new();
    for dir in cgroups.dirs() {
        let mut top = dir.to_path_buf();
        while top.parent().is_some_and(|parent| parent.join("cgroup.procs").exists()) {
            top.pop();
        }
        std::fs::write(top.join("cgroup.procs"), pid.to_string())?;
        tops.push(top);
    }
    Ok(tops)
}

#[test]
fn container_at_the_top_of_the_hierarchies_is_measured_there() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let gate = Gate::new(fixture, "created");
        fake.obey(&[Rule { gate_after: Some(gate.path.clone()), ..Rule::on("create") }])?;
        let bundle = fixture.bundle("a", &Spec::new(&SLEEP))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = Some(integration::container::with_runtime(&fake.path)?);
        let none = Stdio::null();
        let creation = shim.tasks.create_with(&bundle, &none, options);
        let moving = async {
            gate.reached().await?;
            let pid = bundle.file("init.pid").unwrap_or_default().trim().parse()?;
            to_the_top(pid)?;
            gate.open()
        };
        let (pid, moved) = tokio::join!(creation, moving);
        moved?;
        let pid = pid?;
        shim.tasks.start(&bundle.id, "").await?;
        let unified = Cgroups::of(pid)?.is_unified();
        let stats = shim.tasks.stats(&bundle.id).await?.stats.unwrap_or_default();
        if unified {
            // The root has no pids.current, nor memory.current.
            let metrics = MetricsV2::parse_from_bytes(&stats.value)?;
            ensure!(metrics.cpu.usage_usec > 0, "{}", stats.type_url);
        } else {
            let metrics = MetricsV1::parse_from_bytes(&stats.value)?;
            ensure!(metrics.cpu.usage.total > 0, "{}", stats.type_url);
            ensure!(metrics.memory.usage.usage > 0, "{}", stats.type_url);
        }
        shim.retire(&bundle.id).await?;
        shim.gone().await?;
        let words = sink.words(&bundle.id)?;
        ensure_eq!(words, ["create", "start", "exit", "delete"], "events");
        Ok(())
    })
}

#[test]
fn many_calls_at_once_keep_no_descriptor_and_no_thread() -> Result {
    const CALLS: usize = 200;
    if paths::is_go_shim() {
        return skip("measured for the shim of this workspace");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.stats(id).await?;
        let usage = || integration::leak::Usage::of(container.shim.pid);
        let before = usage()?.fds.len();
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..CALLS {
            let (tasks, id) = (tasks.clone(), id.to_owned());
            calls.spawn(async move { tasks.stats(&id).await.map(drop) });
        }
        while let Some(call) = calls.join_next().await {
            call??;
        }
        ensure_eq!(usage()?.fds.len(), before, "descriptors");
        let one_left = || usage().is_ok_and(|usage| usage.threads == 1);
        deadline::until("the end of the shim's other threads", deadline::HANG, one_left).await?;
        container.retire().await
    })
}
