//! What `start` answers to the manager of each series, and where the shim then listens.

use std::path::Path;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use integration::bundle::Bundle;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::{ERAS, Era, Form, Launch, Shim, Started, run, runc_options};
use integration::spec::Spec;
use integration::task::{V2, V3};
use integration::{ensure, ensure_eq, paths};
use tokio::process::Command;

#[test]
fn answer_has_the_form_that_the_manager_understands() -> Result {
    if paths::is_go_shim() {
        return skip("each of Go's shims has one form");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for era in ERAS {
            let bundle =
                fixture.bundle(&format!("{era:?}").replace('_', "."), &Spec::new(&["true"]))?;
            let options = runc_options(&containerd_shim_protos::shim::oci::Options::new())?;
            let shim = Launch::new(fixture, &bundle).era(era).options(options).start().await?;
            let started = &shim.started;
            match era {
                // 1.6 takes the whole text for the address; nothing tells 1.7 from 2.0, and both understand this.
                Era::V1_6 => ensure_eq!(started.form, Form::Plain, "{era:?}"),
                Era::V1_7 | Era::V2_0 => {
                    ensure!(started.form != Form::Protobuf, "{era:?}: {started:?}");
                    ensure_eq!(started.version, 2, "{era:?}");
                }
                Era::V2_3 => {
                    ensure_eq!((started.form, started.version), (Form::Protobuf, 3), "{era:?}");
                }
            }
            ensure_eq!(started.protocol, "ttrpc", "{era:?}");
            ensure!(
                started.address.starts_with("unix:///run/containerd/s/"),
                "{era:?}: {started:?}"
            );
            // A node may go back to one that looks nowhere else, while the container runs.
            let noted = bundle.file("address");
            ensure_eq!(noted.as_ref(), Some(&started.address), "address file, {era:?}");
            for service in [V2, V3] {
                shim.tasks.speaking(service).connect_task("x").await?;
            }
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn socket_is_private_and_its_name_is_that_of_containerds_shims() -> Result {
    use std::os::unix::fs::PermissionsExt;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let expected =
            integration::fixture::socket_paths(&fixture.address(), fixture.namespace(), &bundle.id);
        ensure_eq!(Some(&shim.started.socket()), expected.first(), "path");
        let mode = std::fs::metadata(shim.started.socket())?.permissions().mode();
        ensure_eq!(mode & 0o777, 0o600, "mode of the socket");
        let names = std::fs::read_to_string("/proc/net/unix")?;
        ensure!(!names.contains(&format!("@{}", fixture.namespace())), "an abstract socket");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn longest_names_have_a_socket_of_their_own() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let pad = 76 - fixture.id("").len();
        let mut addresses = Vec::new();
        for letter in ["a", "b"] {
            let bundle = fixture.bundle(&letter.repeat(pad), &Spec::new(&["true"]))?;
            ensure_eq!(bundle.id.len(), 76, "length of the id");
            let shim = Launch::new(fixture, &bundle).start().await?;
            addresses.push(shim.started.address.clone());
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
        }
        ensure!(addresses.first() != addresses.last(), "two ids share a socket");
        Ok(())
    })
}

#[test]
fn socket_directory_of_the_managers_choice_is_made_and_used() -> Result {
    use std::os::unix::fs::PermissionsExt;
    if paths::is_go_shim() {
        return skip("Go's shims before 2.3 know no socket directory");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let dir = fixture.file("own/s");
        let launch = Launch::new(fixture, &bundle).era(Era::V2_3).socket_dir(dir.clone());
        let shim = launch.start().await?;
        ensure!(shim.started.socket().starts_with(&dir), "{:?}", shim.started);
        let mode = std::fs::metadata(&dir)?.permissions().mode();
        ensure_eq!(mode & 0o777, 0o700, "mode of the directory");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
        ensure!(!shim.started.socket().exists(), "the socket stays");
        // One that exists is somebody's: its mode is left alone.
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o711))?;
        let other = fixture.bundle("b", &Spec::new(&["true"]))?;
        let launch = Launch::new(fixture, &other).era(Era::V2_3).socket_dir(dir.clone());
        let shim = launch.start().await?;
        let mode = std::fs::metadata(&dir)?.permissions().mode();
        ensure_eq!(mode & 0o777, 0o711, "mode of the directory");
        shim.shutdown(&other.id).await?;
        shim.gone().await
    })
}

#[test]
fn options_of_another_type_are_no_cgroup_path() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let mut any = Any::new();
        any.type_url = "runtimeoptions.v1.Options".to_owned();
        any.value = b"\x0a\x04text\x12\x05/some".to_vec();
        if paths::is_go_shim() {
            return skip("Go's shim of 1.6 refuses types that it has not got");
        }
        let shim = Launch::new(fixture, &bundle).options(any).start().await?;
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn start_works_with_streams_closed() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, closed) in [("a", "<&-"), ("b", "2>&-"), ("c", "<&- 2>&-")] {
            let bundle = fixture.bundle(name, &Spec::new(&["true"]))?;
            let ran =
                run(start_by(fixture, &bundle, &format!("exec \"$@\" {closed}"))?, b"").await?;
            ensure!(ran.status.success(), "{closed}: {} {}", ran.status, ran.stderr);
            let shim = Shim::connect(fixture, Started::read(&ran.stdout)?).await?;
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

/// `start` as a shell's script runs it.
fn start_by(fixture: &Fixture, bundle: &Bundle, script: &str) -> Result<Command> {
    let inner = Launch::new(fixture, bundle).command("start")?;
    let inner = inner.as_std();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.env_clear().current_dir(&bundle.dir);
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    Ok(command)
}

#[test]
fn shim_joins_its_cgroup() -> Result {
    scenario(async |fixture| {
        let hierarchy = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let exists = |dir: &&Path| dir.join("cgroup.procs").exists();
        let Some(hierarchy) = hierarchy.into_iter().find(exists) else {
            return skip("no cgroup hierarchy");
        };
        let _sink = fixture.fake_containerd()?;
        let name = fixture.id("shims");
        let mut dirs = Vec::new();
        for path in std::fs::read_dir("/sys/fs/cgroup")?.flatten().map(|entry| entry.path()) {
            let is_v1 = path.join("cgroup.procs").exists() && !path.ends_with("unified");
            if hierarchy.ends_with("memory") && is_v1 {
                dirs.push(path.join(&name));
            }
        }
        if dirs.is_empty() {
            dirs.push(hierarchy.join(&name));
        }
        for dir in &dirs {
            std::fs::create_dir(dir)?;
            // An empty cpuset takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if dir.join(file).exists() {
                    let parent = dir.parent().unwrap_or(dir).join(file);
                    std::fs::write(dir.join(file), std::fs::read(parent)?)?;
                }
            }
        }
        let mut options = containerd_shim_protos::shim::oci::Options::new();
        options.shim_cgroup = format!("/{name}");
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let launch = Launch::new(fixture, &bundle).options(runc_options(&options)?);
        let shim = launch.start().await?;
        let members = std::fs::read_to_string(hierarchy.join(&name).join("cgroup.procs"))?;
        let joined = members.lines().any(|pid| pid == shim.pid.to_string());
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
        for dir in &dirs {
            std::fs::remove_dir(dir)?;
        }
        ensure!(joined, "{} is not among {members:?}", shim.pid);
        Ok(())
    })
}

#[test]
fn debug_reaches_the_serving_process() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).debug().start().await?;
        let line = std::fs::read(format!("/proc/{}/cmdline", shim.pid))?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        ensure!(line.contains("-debug"), "{line}");
        ensure!(line.contains(&bundle.id) && line.contains(fixture.namespace()), "{line}");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}
