//! What a killed shim leaves to `delete`: several containers of one shim, and containers that were only half made.

use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::protobuf::Message;
use integration::bundle::Bundle;
use integration::container::with_runtime;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::fixture::Fixture;
use integration::rootfs::mounted;
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim, is_alive};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::create_request;
use integration::{deadline, ensure, ensure_eq, hybrid, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SLEEP: [&str; 2] = ["sleep", "1000"];

async fn kill_shim(shim: &Shim) -> Result {
    kill(Pid::from_raw(shim.pid.try_into()?), Signal::SIGKILL)?;
    shim.gone().await?;
    drop(std::fs::remove_file(shim.started.socket()));
    Ok(())
}

/// Runs `delete` for a container; the pid that it reports.
async fn delete(fixture: &Fixture, bundle: &Bundle) -> Result<u32> {
    let ran = Launch::new(fixture, bundle).run("delete").await?;
    ensure!(ran.status.success(), "{}: {}", ran.status, ran.stderr);
    let answer = DeleteResponse::parse_from_bytes(&ran.stdout)?;
    ensure_eq!(answer.exit_status, 137, "status");
    Ok(answer.pid)
}

async fn dead(pid: u32) -> Result {
    deadline::until("a process's end", deadline::HANG, || !is_alive(pid)).await
}

#[test]
fn containers_of_a_killed_shim_are_each_deleted_in_any_order() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in hybrid::both_runtimes()? {
            for order in [[0, 1, 2], [2, 1, 0]] {
                let name = |one: &str| format!("{name}-{one}{}", order[0]);
                let group = fixture.id(&name("g"));
                let spec = Spec::new(&SLEEP).annotation("io.containerd.runc.v2.group", &group);
                let mut made = Vec::new();
                let mut shim = None;
                for one in ["p", "a", "b"] {
                    let bundle = fixture.bundle(&name(one), &spec)?;
                    let joined = Launch::new(fixture, &bundle).start().await?;
                    let options = Some(with_runtime(&runtime)?);
                    let pid = joined.tasks.create_with(&bundle, &Stdio::null(), options).await?;
                    // The last one is not started.
                    if one != "b" {
                        joined.tasks.start(&bundle.id, "").await?;
                    }
                    made.push((bundle, pid));
                    shim = Some(joined);
                }
                if let Some(shim) = shim {
                    kill_shim(&shim).await?;
                }
                for index in order {
                    let Some((bundle, pid)) = made.get(index) else { continue };
                    ensure!(is_alive(*pid), "{} ended with another", bundle.id);
                    ensure_eq!(delete(fixture, bundle).await?, *pid, "pid of {}", bundle.id);
                    dead(*pid).await?;
                    ensure!(mounted(&bundle.dir)?.is_empty(), "mounts of {}", bundle.id);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn containers_of_a_killed_shim_are_deleted_side_by_side() -> Result {
    const CONTAINERS: usize = 6;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let group = fixture.id("g");
        let spec = Spec::shell("sleep 1000 & exec sleep 1000")
            .annotation("io.containerd.runc.v2.group", &group);
        let mut made = Vec::new();
        for number in 0..CONTAINERS {
            let bundle = fixture.bundle(&format!("c{number}"), &spec)?;
            let shim = Launch::new(fixture, &bundle).start().await?;
            let pid = shim.tasks.create(&bundle, &Stdio::null()).await?;
            shim.tasks.start(&bundle.id, "").await?;
            made.push((bundle, shim, pid));
        }
        if let Some((_, shim, _)) = made.first() {
            kill_shim(shim).await?;
        }
        let launches: Vec<Launch<'_>> =
            made.iter().map(|(bundle, ..)| Launch::new(fixture, bundle)).collect();
        let mut deletes = tokio::task::JoinSet::new();
        for launch in &launches {
            deletes.spawn(integration::shim::run(launch.command("delete")?, b""));
        }
        while let Some(ran) = deletes.join_next().await {
            let ran = ran??;
            ensure!(ran.status.success(), "{}: {}", ran.status, ran.stderr);
        }
        for (bundle, _, pid) in &made {
            dead(*pid).await?;
            ensure!(mounted(&bundle.dir)?.is_empty(), "mounts of {}", bundle.id);
        }
        Ok(())
    })
}

#[test]
fn container_that_was_being_made_is_removed_however_far_it_was() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not always take the runtime with them");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in hybrid::both_runtimes()? {
            for after in [false, true] {
                let _ = std::fs::remove_file(fixture.bin().join("fakerunc"));
                let mut fake = FakeRunc::install_for(fixture, &runtime)?;
                let gate = Gate::new(fixture, &format!("{name}-{after}"));
                let path = Some(gate.path.clone());
                let rule = match after {
                    false => Rule { gate: path, ..Rule::on("create") },
                    true => Rule { gate_after: path, ..Rule::on("create") },
                };
                fake.obey(&[rule])?;
                let bundle = fixture.bundle(&format!("{name}-{after}"), &Spec::new(&SLEEP))?;
                let shim = Launch::new(fixture, &bundle).start().await?;
                let mut request = create_request(&bundle, &Stdio::null());
                request.options = Some(with_runtime(&fake.path)?).into();
                let creation = shim.tasks.call::<containerd_shim_protos::api::CreateTaskResponse>(
                    "Create",
                    &request,
                    deadline::HANG,
                );
                let killing = async {
                    gate.reached().await?;
                    kill_shim(&shim).await
                };
                let (created, killed) = tokio::join!(creation, killing);
                killed?;
                ensure!(created.is_err(), "created by a dead shim");
                // From here on the runtime is as it should be.
                fake.obey(&[])?;
                let init = bundle.file("init.pid").and_then(|pid| pid.trim().parse().ok());
                ensure_eq!(init.is_some(), after, "a pid of init");
                ensure_eq!(mounted(&bundle.dir)?.len(), 1, "mounts of the dead shim");
                delete(fixture, &bundle).await?;
                ensure!(mounted(&bundle.dir)?.is_empty(), "mounts of {}", bundle.id);
                if let Some(init) = init {
                    dead(init).await?;
                }
            }
        }
        Ok(())
    })
}
