//! Cgroups: metrics, limits, and the end of those who want too much.

use containerd_shim_protos::cgroups::metrics::Metrics as MetricsV1;
use containerd_shim_protos::cgroups_v2::metrics::Metrics as MetricsV2;
use containerd_shim_protos::protobuf::Message;
use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::scenario::{scenario, skip};
use integration::spec::Spec;
use integration::{ensure, ensure_eq, paths};
use serde_json::json;
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];
const MIB: u64 = 1 << 20;

/// Is the memory controller a v1 hierarchy of its own here?
fn is_v1() -> bool {
    std::path::Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
}

/// The value of a file of a container's cgroup.
fn cgroup_file(id: &str, v1: &str, v2: &str) -> Result<u64> {
    let path = if is_v1() {
        let controller = v1.split('.').next().unwrap_or_default();
        format!("/sys/fs/cgroup/{controller}/{id}/{v1}")
    } else {
        format!("/sys/fs/cgroup/{id}/{v2}")
    };
    Ok(std::fs::read_to_string(path)?.trim().parse()?)
}

#[test]
fn metrics_are_those_of_the_hierarchy_and_equal_its_files() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let stats = container.shim.tasks.stats(container.id()).await?.stats.unwrap_or_default();
        let pids = cgroup_file(container.id(), "pids.current", "pids.current")?;
        let (counted, memory, cpu) = if is_v1() {
            ensure_eq!(stats.type_url, "io.containerd.cgroups.v1.Metrics", "type");
            let metrics = MetricsV1::parse_from_bytes(&stats.value)?;
            (metrics.pids.current, metrics.memory.usage.usage, metrics.cpu.usage.total)
        } else {
            ensure_eq!(stats.type_url, "io.containerd.cgroups.v2.Metrics", "type");
            let metrics = MetricsV2::parse_from_bytes(&stats.value)?;
            (metrics.pids.current, metrics.memory.usage, metrics.cpu.usage_usec)
        };
        ensure_eq!(counted, pids, "pids");
        ensure!(memory > 0 && cpu > 0, "memory {memory}, cpu {cpu}");
        container.retire().await
    })
}

#[test]
fn metrics_of_what_has_ended_are_an_answer_not_a_crash() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.wait(id, "").await?;
        drop(tasks.stats(id).await);
        tasks.delete(id, "").await?;
        let code = tasks.stats(id).await.err().and_then(|error| error.code());
        ensure_eq!(code, Some(Code::NOT_FOUND), "after delete");
        container.retire().await
    })
}

#[test]
fn memory_limit_is_raised_and_lowered() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let swap = is_v1()
            && std::path::Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
        let container =
            Container::run(fixture, "a", &Spec::new(&SLEEP).memory_limit(32 * MIB)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for (limit, both) in [(128 * MIB, 256 * MIB), (16 * MIB, 32 * MIB)] {
            let memory = if swap {
                json!({ "limit": limit, "swap": both })
            } else {
                json!({ "limit": limit })
            };
            tasks.update(id, &json!({ "memory": memory })).await?;
            let now = cgroup_file(id, "memory.limit_in_bytes", "memory.max")?;
            ensure_eq!(now, limit, "limit");
            if swap {
                let now = cgroup_file(id, "memory.memsw.limit_in_bytes", "")?;
                ensure_eq!(now, both, "limit with swap");
            }
        }
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        let late = tasks.update(id, &json!({ "memory": { "limit": MIB } })).await;
        ensure!(late.is_err(), "a stopped container was updated");
        container.retire().await
    })
}

#[test]
fn update_of_a_created_container_works_and_nonsense_is_refused() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let spec = Spec::new(&SLEEP);
        let none = integration::stdio::Stdio::null();
        let container = Container::create(fixture, "a", &spec, &none, None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.update(id, &json!({ "memory": { "limit": 64 * MIB } })).await?;
        ensure!(tasks.update(id, &json!("nonsense")).await.is_err(), "nonsense was taken");
        if !paths::is_go_shim() {
            let mut request = containerd_shim_protos::api::UpdateTaskRequest::new();
            request.id = id.to_owned();
            let answer = tasks
                .call::<containerd_shim_protos::api::Empty>(
                    "Update",
                    &request,
                    integration::deadline::HANG,
                )
                .await;
            let code = answer.err().and_then(|error| error.code());
            ensure_eq!(code, Some(Code::INVALID_ARGUMENT), "without resources");
        }
        container.retire().await
    })
}

#[test]
fn kill_for_lack_of_memory_is_told_before_the_end_in_every_container_of_a_shim() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not promise the order");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let group = fixture.id("g");
        let grouped = |spec: Spec| spec.annotation("io.containerd.runc.v2.group", &group);
        let pause = Container::run(fixture, "p", &grouped(Spec::new(&SLEEP))).await?;
        for round in 0..4 {
            // A last line without end: busybox keeps it all.
            let spec = grouped(Spec::new(&["tail", "/dev/zero"]).memory_limit(16 * MIB));
            let bundle = fixture.bundle(&format!("o{round}"), &spec)?;
            let tasks = &pause.shim.tasks;
            tasks.create(&bundle, &integration::stdio::Stdio::null()).await?;
            tasks.start(&bundle.id, "").await?;
            ensure_eq!(tasks.wait(&bundle.id, "").await?.exit_status, 137, "exit status");
            sink.wait_for_word(&bundle.id, "exit").await?;
            let words = sink.words(&bundle.id)?;
            ensure_eq!(words, ["create", "start", "oom", "exit"], "events of round {round}");
            tasks.delete(&bundle.id, "").await?;
        }
        let words = sink.words(pause.id())?;
        ensure!(!words.contains(&"oom".to_owned()), "{words:?}");
        pause.retire().await
    })
}

#[test]
fn exec_that_is_killed_for_lack_of_memory_is_told_once() -> Result {
    if paths::is_go_shim() {
        return skip("measured for the shim of this workspace");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let spec = Spec::new(&SLEEP).memory_limit(32 * MIB);
        let container = Container::run(fixture, "a", &spec).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("fine", &["true"]).await?;
        tasks.wait(id, "fine").await?;
        container.exec("e", &["tail", "/dev/zero"]).await?;
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 137, "exit status");
        let events = sink.wait_for_word(id, "oom").await?;
        let count = events.iter().filter(|event| event.word() == "oom").count();
        ensure_eq!(count, 1, "oom events in {:?}", sink.words(id)?);
        let _ = events.last().ok_or_else(|| Failure::new("no events"))?;
        container.retire().await
    })
}
