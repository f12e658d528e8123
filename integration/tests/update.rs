//! Limits changed while a container lives.

use std::path::PathBuf;

use containerd_shim_protos::api::{Empty, UpdateTaskRequest};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use integration::cgroup::Cgroups;
use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Rule};
use integration::fixture::Fixture;
use integration::hybrid::both_runtimes;
use integration::scenario::{scenario, skip};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Answer, TaskClient};
use integration::{deadline, ensure, ensure_eq, paths};
use serde_json::{Value, json};
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];
const MIB: u64 = 1 << 20;

/// Limits as the kernel has them, by names that do for both versions of cgroups; no limit is none.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    memory: Option<u64>,
    /// With swap; none also where the kernel does not count swap.
    total: Option<u64>,
    pids: Option<u64>,
    /// Microseconds of processor time in each period.
    quota: Option<u64>,
    shares: u64,
}

impl Limits {
    fn of(cgroups: &Cgroups) -> Result<Self> {
        let number = |controller: &str, file: &str| cgroups.number(controller, file).ok();
        let pids = number("pids", "pids.max");
        if !cgroups.is_unified() {
            // What has no limit is a number of some exabytes.
            let bytes = |file: &str| number("memory", file).filter(|&bytes| bytes < 1 << 60);
            return Ok(Self {
                memory: bytes("memory.limit_in_bytes"),
                total: bytes("memory.memsw.limit_in_bytes"),
                pids,
                quota: number("cpu", "cpu.cfs_quota_us"),
                shares: cgroups.number("cpu", "cpu.shares")?,
            });
        }
        let memory = number("memory", "memory.max");
        let swap = number("memory", "memory.swap.max");
        let quota = cgroups.text("cpu", "cpu.max")?;
        Ok(Self {
            memory,
            total: memory.zip(swap).map(|(memory, swap)| memory + swap),
            pids,
            quota: quota.split(' ').next().and_then(|quota| quota.parse().ok()),
            shares: cgroups.number("cpu", "cpu.weight")?,
        })
    }
}

fn code<T>(answer: Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

async fn raise_and_lower(fixture: &Fixture, name: &str, runtime: &PathBuf) -> Result {
    let (spec, none) = (Spec::new(&SLEEP).memory_limit(32 * MIB), Stdio::null());
    let container = Container::run_with(fixture, name, &spec, &none, Some(runtime)).await?;
    let (id, tasks) = (container.id(), &container.shim.tasks);
    let cgroups = Cgroups::of(container.pid)?;
    let swap = Limits::of(&cgroups)?.total.is_some();
    for (limit, total) in [(32, 64), (128, 256), (16, 32), (512, 512), (24, 24)] {
        let memory = match swap {
            true => json!({ "limit": limit * MIB, "swap": total * MIB }),
            false => json!({ "limit": limit * MIB }),
        };
        let doing = format!("to {limit} and {total} MiB with {name}");
        let updated = tasks.update(id, &json!({ "memory": memory })).await;
        updated.map_err(|error| Failure::new(format!("{doing}: {error}")))?;
        let limits = Limits::of(&cgroups)?;
        ensure_eq!(limits.memory, Some(limit * MIB), "memory {doing}");
        if swap {
            ensure_eq!(limits.total, Some(total * MIB), "memory with swap {doing}");
        }
    }
    container.retire().await
}

#[test]
fn memory_is_raised_and_lowered_together_with_swap() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            raise_and_lower(fixture, name, &runtime).await?;
        }
        Ok(())
    })
}

#[test]
fn each_limit_is_changed_and_the_others_stay() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let (spec, none) = (Spec::new(&SLEEP).memory_limit(32 * MIB), Stdio::null());
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            let cgroups = Cgroups::of(container.pid)?;
            let mut right = Limits::of(&cgroups)?;
            tasks.update(id, &json!({ "pids": { "limit": 7 } })).await?;
            right.pids = Some(7);
            ensure_eq!(Limits::of(&cgroups)?, right, "after pids, {name}");
            let cpu = json!({ "cpu": { "quota": 50_000, "period": 100_000 } });
            tasks.update(id, &cpu).await?;
            right.quota = Some(50_000);
            ensure_eq!(Limits::of(&cgroups)?, right, "after the quota, {name}");
            tasks.update(id, &json!({ "cpu": { "shares": 512 } })).await?;
            let shares = Limits::of(&cgroups)?.shares;
            ensure!(shares < right.shares, "shares are {shares} of {}, {name}", right.shares);
            right.shares = shares;
            ensure_eq!(Limits::of(&cgroups)?, right, "after shares, {name}");
            // The kernel obeys: beside init there is room for six.
            let many = "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; sleep 1000";
            container.exec("e", &["sh", "-c", many]).await?;
            let waited = tasks.wait(id, "e").await?;
            ensure!(waited.exit_status != 0, "nine processes where seven may be, {name}");
            container.retire().await?;
        }
        Ok(())
    })
}

#[test]
fn neighbour_in_the_same_shim_keeps_its_limits() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let group = fixture.id("g");
        let grouped = |limit| {
            let spec = Spec::new(&SLEEP).memory_limit(limit);
            spec.annotation("io.containerd.runc.v2.group", &group)
        };
        let first = Container::run(fixture, "a", &grouped(32 * MIB)).await?;
        let (tasks, second) = (&first.shim.tasks, fixture.bundle("b", &grouped(48 * MIB))?);
        let pid = tasks.create(&second, &Stdio::null()).await?;
        tasks.start(&second.id, "").await?;
        let neighbour = Cgroups::of(pid)?;
        let before = Limits::of(&neighbour)?;
        let resources = json!({
            "memory": { "limit": 64 * MIB, "swap": 64 * MIB }, "pids": { "limit": 9 },
            "cpu": { "shares": 300 },
        });
        tasks.update(first.id(), &resources).await?;
        ensure_eq!(Limits::of(&neighbour)?, before, "limits of the neighbour");
        ensure_eq!(Limits::of(&Cgroups::of(first.pid)?)?.memory, Some(64 * MIB), "own limit");
        first.shim.retire(&second.id).await?;
        first.retire().await
    })
}

#[test]
fn created_and_frozen_containers_are_updated_and_ended_ones_are_not() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let (spec, none) = (Spec::new(&SLEEP).memory_limit(32 * MIB), Stdio::null());
            let container = Container::create(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            let cgroups = Cgroups::of(container.pid)?;
            let set =
                async |count: u64| tasks.update(id, &json!({ "pids": { "limit": count } })).await;
            set(50).await?;
            ensure_eq!(Limits::of(&cgroups)?.pids, Some(50), "created, {name}");
            tasks.start(id, "").await?;
            tasks.pause(id).await?;
            set(60).await?;
            ensure_eq!(Limits::of(&cgroups)?.pids, Some(60), "frozen, {name}");
            tasks.resume(id).await?;
            tasks.kill(id, "", 9).await?;
            tasks.wait(id, "").await?;
            let late = code(set(70).await);
            if paths::is_go_shim() {
                ensure!(late.is_some(), "an ended container was updated, {name}");
            } else {
                ensure_eq!(late, Some(Code::FAILED_PRECONDITION), "ended, {name}");
            }
            tasks.delete(id, "").await?;
            ensure_eq!(code(set(80).await), Some(Code::NOT_FOUND), "deleted, {name}");
            container.shim.shutdown(id).await?;
            container.shim.gone().await?;
        }
        Ok(())
    })
}

async fn update_with(tasks: &TaskClient, id: &str, resources: Option<Any>) -> Answer<()> {
    let mut request = UpdateTaskRequest::new();
    request.id = id.to_owned();
    request.resources = MessageField::from_option(resources);
    tasks.call::<Empty>("Update", &request, deadline::HANG).await.map(drop)
}

#[test]
fn what_are_no_resources_is_refused_before_any_runtime_is_called() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims crash on some of it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install(fixture)?;
        let (spec, none) = (Spec::new(&SLEEP).memory_limit(32 * MIB), Stdio::null());
        let container = Container::run_with(fixture, "a", &spec, &none, Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let before = Limits::of(&Cgroups::of(container.pid)?)?;
        let packed = |bytes: &[u8]| {
            let mut any = Any::new();
            any.type_url =
                "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".to_owned();
            any.value = bytes.to_vec();
            Some(any)
        };
        let nested = "[".repeat(100_000);
        for bytes in
            [&b""[..], b"null", b"[]", b"7", b"\"x\"", b"{", b"\xff\xfe", nested.as_bytes()]
        {
            let refused = code(update_with(tasks, id, packed(bytes)).await);
            let shown = String::from_utf8_lossy(bytes.get(..8).unwrap_or(bytes));
            ensure_eq!(refused, Some(Code::INVALID_ARGUMENT), "{shown:?}");
        }
        let refused = code(update_with(tasks, id, None).await);
        ensure_eq!(refused, Some(Code::INVALID_ARGUMENT), "none at all");
        ensure!(fake.calls_of("update")?.is_empty(), "the runtime was called");
        ensure_eq!(Limits::of(&Cgroups::of(container.pid)?)?, before, "limits");
        container.retire().await
    })
}

#[test]
fn what_the_runtime_says_of_impossible_limits_is_passed_on() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let (spec, none) = (Spec::new(&SLEEP).memory_limit(32 * MIB), Stdio::null());
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            // Of the right form, and no processor of any machine.
            let answer = tasks.update(id, &json!({ "cpu": { "cpus": "70000" } })).await;
            let error = answer.err().ok_or_else(|| Failure::new(format!("updated, {name}")))?;
            ensure!(error.to_string().contains("cpuset"), "{error}, {name}");
            tasks.state(id, "").await?;
            container.retire().await?;
        }
        Ok(())
    })
}

#[test]
fn failing_update_of_a_stand_in_tells_its_words_and_large_resources_reach_it() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule::on("update").fails("no such limit here")])?;
        let (spec, none) = (Spec::new(&SLEEP), Stdio::null());
        let container = Container::run_with(fixture, "a", &spec, &none, Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        // More than a pipe holds, to a runtime that does not read it.
        let many: Vec<Value> = (0..20_000).map(|n| json!({ "key": n })).collect();
        let answer = tasks.update(id, &json!({ "unified": {}, "x": many })).await;
        let error = answer.err().ok_or_else(|| Failure::new("updated"))?;
        ensure!(error.to_string().contains("no such limit here"), "{error}");
        let calls = fake.calls_of("update")?;
        let call = calls.first().ok_or_else(|| Failure::new("no call"))?;
        // In one word or two.
        let line = call.line().join(" ").replace("--resources -", "--resources=-");
        ensure_eq!(line, format!("update --resources=- {id}"), "arguments");
        container.retire().await
    })
}
