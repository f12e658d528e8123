//! `delete`: what is run for a container whose shim is gone.

use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::protobuf::Message;
use integration::container::Container;
use integration::event::time;
use integration::failure::Result;
use integration::scenario::scenario;
use integration::shim::{Launch, Ran, is_alive, runc_options};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SLEEP: [&str; 2] = ["sleep", "1000"];

async fn kill_shim(container: &Container) -> Result {
    kill(Pid::from_raw(container.shim.pid.try_into()?), Signal::SIGKILL)?;
    container.shim.gone().await?;
    drop(std::fs::remove_file(container.shim.started.socket()));
    Ok(())
}

fn answer(ran: &Ran) -> Result<DeleteResponse> {
    ensure!(ran.status.success(), "{}: {}", ran.status, ran.stderr);
    Ok(DeleteResponse::parse_from_bytes(&ran.stdout)?)
}

async fn dead(pid: u32) -> Result {
    deadline::until("init's end", deadline::HANG, || !is_alive(pid)).await
}

#[test]
fn container_of_a_killed_shim_is_ended_and_its_end_reported() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        kill_shim(&container).await?;
        ensure!(is_alive(container.pid), "init died with the shim");
        let launch = Launch::new(fixture, &container.bundle);
        let deleted = answer(&launch.run("delete").await?)?;
        ensure_eq!((deleted.pid, deleted.exit_status), (container.pid, 137), "answer");
        ensure!(deleted.exited_at.as_ref().and_then(time).is_some(), "no time in {deleted:?}");
        dead(container.pid).await?;
        // A second one finds nothing and says the same.
        let again = answer(&launch.run("delete").await?)?;
        ensure_eq!((again.pid, again.exit_status), (container.pid, 137), "second answer");
        Ok(())
    })
}

#[test]
fn any_of_the_bundles_files_may_be_missing() -> Result {
    const FILES: [&str; 6] =
        ["runtime", "options.json", "init.pid", "config.json", "work", "rootfs"];
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for missing in 0..(1_u32 << FILES.len()) {
            // All combinations would take minutes with real containers: one missing, all missing, and every third.
            let count = missing.count_ones() as usize;
            if !(count <= 1 || count == FILES.len() || missing % 3 == 0) {
                continue;
            }
            let gone: Vec<&str> = (0..FILES.len())
                .filter(|n| missing & (1 << n) != 0)
                .filter_map(|n| FILES.get(n).copied())
                .collect();
            if paths::is_go_shim() && gone.contains(&"runtime") {
                continue;
            }
            let bundle = fixture.bundle(&format!("m{missing}"), &Spec::new(&SLEEP))?;
            for (file, text) in
                [("runtime", "runc"), ("options.json", "{}"), ("init.pid", "4194304")]
            {
                std::fs::write(bundle.dir.join(file), text)?;
            }
            for file in &gone {
                let path = bundle.dir.join(file);
                if path.is_dir() && !path.is_symlink() {
                    std::fs::remove_dir(path)?;
                } else {
                    std::fs::remove_file(path)?;
                }
            }
            let ran = Launch::new(fixture, &bundle).run("delete").await?;
            let deleted = answer(&ran).map_err(|failure| failure.context(format!("{gone:?}")))?;
            ensure_eq!(deleted.exit_status, 137, "status without {gone:?}");
            if !paths::is_go_shim() {
                let pid = if gone.contains(&"init.pid") { 0 } else { 4_194_304 };
                ensure_eq!(deleted.pid, pid, "pid without {gone:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn options_of_create_are_remembered_without_the_shim() -> Result {
    integration::hybrid::free_unified_hierarchy()?;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.file("runtime-root");
        let mut options = containerd_shim_protos::shim::oci::Options::new();
        options.root = root.display().to_string();
        options.binary_name = paths::crun()?.display().to_string();
        let bundle = fixture.bundle("a", &Spec::new(&SLEEP))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let pid =
            shim.tasks.create_with(&bundle, &Stdio::null(), Some(runc_options(&options)?)).await?;
        shim.tasks.start(&bundle.id, "").await?;
        let state = root.join(fixture.namespace()).join(&bundle.id);
        ensure!(state.exists(), "no state in {}", state.display());
        let container = Container { bundle, shim, pid };
        kill_shim(&container).await?;
        answer(&Launch::new(fixture, &container.bundle).run("delete").await?)?;
        ensure!(!state.exists(), "{} stays", state.display());
        dead(pid).await
    })
}

#[test]
fn no_event_socket_is_needed() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let dead_socket = fixture.file("dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead_socket)?);
        for (name, address) in [
            ("empty", String::new()),
            ("dead", dead_socket.display().to_string()),
            ("none", "/none".into()),
        ] {
            let container = Container::run(fixture, name, &Spec::new(&SLEEP)).await?;
            kill_shim(&container).await?;
            let launch = Launch::new(fixture, &container.bundle).env("TTRPC_ADDRESS", &address);
            answer(&launch.run("delete").await?).map_err(|failure| failure.context(name))?;
            dead(container.pid).await?;
        }
        drop(sink);
        Ok(())
    })
}

#[test]
fn bundle_that_never_ran_is_deleted_too() -> Result {
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&SLEEP))?;
        if paths::is_go_shim() {
            std::fs::write(bundle.dir.join("runtime"), "runc")?;
        }
        answer(&Launch::new(fixture, &bundle).run("delete").await?)?;
        Ok(())
    })
}

#[test]
fn mounted_root_filesystem_is_unmounted_and_its_source_untouched() -> Result {
    use nix::mount::{MsFlags, mount};
    if paths::is_go_shim() {
        return integration::scenario::skip("Go's shims before 1.7 unmount one layer");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&SLEEP))?;
        std::fs::write(bundle.dir.join("runtime"), "runc")?;
        let source = fixture.rootfs()?;
        let none = None::<&str>;
        mount(Some(&source), &bundle.dir.join("rootfs"), none, MsFlags::MS_BIND, none)?;
        let inner = bundle.dir.join("rootfs/tmp");
        mount(Some("none"), &inner, Some("tmpfs"), MsFlags::empty(), none)?;
        answer(&Launch::new(fixture, &bundle).run("delete").await?)?;
        ensure!(source.join("bin/busybox").exists(), "the source was emptied");
        ensure!(std::fs::read_dir(bundle.dir.join("rootfs"))?.next().is_none(), "still mounted");
        Ok(())
    })
}

#[test]
fn delete_ignores_the_signals_of_a_system_that_goes_down() -> Result {
    use integration::fakerunc::{FakeRunc, Gate, Rule};
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&SLEEP);
        let container =
            Container::run_with(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        kill_shim(&container).await?;
        let gate = Gate::new(fixture, "delete");
        fake.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("delete") }])?;
        let mut command = Launch::new(fixture, &container.bundle).command("delete")?;
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let child = command.spawn()?;
        gate.reached().await?;
        let pid = Pid::from_raw(child.id().unwrap_or_default().try_into()?);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGPIPE] {
            kill(pid, signal)?;
        }
        gate.open()?;
        let output = child.wait_with_output().await?;
        ensure!(output.status.success(), "{}", output.status);
        ensure_eq!(DeleteResponse::parse_from_bytes(&output.stdout)?.pid, container.pid, "pid");
        dead(container.pid).await
    })
}
