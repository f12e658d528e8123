//! Wrong calls of the shim's command line: each is refused with one line that names what is wrong, and leaves nothing.

use std::path::Path;
use std::process::Stdio as ProcessStdio;
use std::time::Duration;

use integration::failure::{Failure, Result};
use integration::leak::{Snapshot, settle};
use integration::scenario::{scenario, skip};
use integration::shim::{Era, Launch, Ran, Shim, Started, run, runc_options};
use integration::spec::Spec;
use integration::{deadline, ensure, paths};
use tokio::process::Command;

/// One way to call `start` wrongly.
struct Case {
    name: &'static str,
    /// What the refusal has to name.
    names: &'static str,
    prepare: fn(&Path) -> std::io::Result<()>,
    command: fn(&mut Command),
}

const BAD_INPUT: [Case; 6] = [
    Case {
        name: "missing config.json",
        names: "config.json",
        prepare: |bundle| std::fs::remove_file(bundle.join("config.json")),
        command: |_| {},
    },
    Case {
        name: "broken config.json",
        names: "config.json",
        prepare: |bundle| std::fs::write(bundle.join("config.json"), "{\"annotations\":"),
        command: |_| {},
    },
    Case {
        name: "empty config.json",
        names: "config.json",
        prepare: |bundle| std::fs::write(bundle.join("config.json"), ""),
        command: |_| {},
    },
    Case {
        name: "unknown flag",
        names: "-no-such-flag",
        prepare: |_| Ok(()),
        command: |command| {
            let actual = command.as_std();
            let mut again = Command::new(actual.get_program());
            again.arg("-no-such-flag").args(actual.get_args().collect::<Vec<_>>());
            for (name, value) in actual.get_envs() {
                if let Some(value) = value {
                    again.env(name, value);
                }
            }
            again.current_dir(actual.get_current_dir().unwrap_or(Path::new("/")));
            *command = again;
        },
    },
    Case {
        name: "unknown action",
        names: "no-such-action",
        prepare: |_| Ok(()),
        command: |command| {
            let actual = command.as_std();
            let mut again = Command::new(actual.get_program());
            let arguments: Vec<_> = actual.get_args().filter(|one| *one != "start").collect();
            again.args(arguments).arg("no-such-action");
            for (name, value) in actual.get_envs() {
                if let Some(value) = value {
                    again.env(name, value);
                }
            }
            again.current_dir(actual.get_current_dir().unwrap_or(Path::new("/")));
            *command = again;
        },
    },
    Case {
        name: "no event address",
        names: "TTRPC_ADDRESS",
        prepare: |_| Ok(()),
        command: |command| {
            command.env("TTRPC_ADDRESS", "unix://");
        },
    },
];

#[test]
fn bad_input_is_refused_in_one_line_that_names_it_and_leaves_nothing() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim has its own words, and leaves a process for some");
    }
    for case in BAD_INPUT {
        scenario(async |fixture| {
            let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
            (case.prepare)(&bundle.dir)?;
            let mut command = Launch::new(fixture, &bundle).command("start")?;
            (case.command)(&mut command);
            let ran = run(command, b"").await?;
            ran.check_refusal(fixture, case.name, case.names)
        })?;
    }
    Ok(())
}

#[test]
fn start_without_namespace_is_refused() -> Result {
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let mut command = Command::new(paths::shim()?);
        command.args(["-id", &bundle.id, "start"]).current_dir(&bundle.dir).env_clear();
        command.env("PATH", fixture.path());
        let ran = run(command, b"").await?;
        ran.check_refusal(fixture, "no namespace", "namespace")
    })
}

#[test]
fn overlong_socket_directory_is_refused_with_the_limit() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.3 know no socket directory");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let dir = fixture.file(&"d".repeat(80));
        let launch = Launch::new(fixture, &bundle).era(Era::V2_3).socket_dir(dir.clone());
        let ran = launch.run("start").await?;
        ran.check_refusal(fixture, "socket dir", "too long")?;
        ensure!(!dir.exists(), "the directory was made");
        Ok(())
    })
}

#[test]
fn stdin_beyond_its_limit_is_refused_and_not_swallowed() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.3 read without limit");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let launch = Launch::new(fixture, &bundle);
        let ran = run(launch.command("start")?, &vec![b'x'; 11 << 20]).await?;
        ran.check_refusal(fixture, "11 MiB", "stdin")?;
        let mut command = launch.command("start")?;
        command.stdin(std::fs::File::open("/dev/zero")?);
        command.stdout(ProcessStdio::piped()).stderr(ProcessStdio::piped());
        let output =
            tokio::time::timeout(deadline::HANG, command.spawn()?.wait_with_output()).await;
        let output = output.map_err(|_| Failure::new("/dev/zero is read for ever"))??;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let ran = Ran { status: output.status, stdout: output.stdout, stderr };
        ran.check_refusal(fixture, "/dev/zero", "stdin")
    })
}

#[test]
fn unreadable_options_are_refused() -> Result {
    if paths::is_go_shim() {
        return skip("later Go shims ignore what they cannot decode");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let ran = run(Launch::new(fixture, &bundle).command("start")?, &[0xff; 64]).await?;
        ran.check_refusal(fixture, "garbage", "stdin")
    })
}

#[test]
fn shim_cgroup_that_does_not_exist_fails_the_start_and_leaves_nothing() -> Result {
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let mut options = containerd_shim_protos::shim::oci::Options::new();
        options.shim_cgroup = format!("/{}-none/..//x", fixture.namespace());
        let launch = Launch::new(fixture, &bundle).options(runc_options(&options)?);
        let ran = launch.run("start").await?;
        if ran.status.success() && paths::is_go_shim() {
            // On v1 Go's library makes the cgroup instead.
            Shim::connect(fixture, Started::read(&ran.stdout)?).await?.shutdown(&bundle.id).await?;
            return Ok(());
        }
        ran.check_refusal(fixture, "shim cgroup", "cgroup")
    })
}

#[test]
fn bundle_on_a_full_disk_is_refused_or_served_but_leaves_nothing() -> Result {
    use nix::mount::{MsFlags, mount, umount};
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let spare = fixture.file("spare");
        std::fs::rename(&bundle.dir, &spare)?;
        std::fs::create_dir(&bundle.dir)?;
        mount(Some("none"), &bundle.dir, Some("tmpfs"), MsFlags::empty(), Some("size=64k"))?;
        std::fs::copy(spare.join("config.json"), bundle.dir.join("config.json"))?;
        nix::unistd::mkfifo(&bundle.dir.join("log"), nix::sys::stat::Mode::S_IRWXU)?;
        let log =
            std::fs::OpenOptions::new().read(true).write(true).open(bundle.dir.join("log"))?;
        let filler = vec![0; 1 << 20];
        drop(std::fs::write(bundle.dir.join("filler"), filler));
        let ran = Launch::new(fixture, &bundle).run("start").await?;
        if ran.status.success() {
            let shim = Shim::connect(fixture, Started::read(&ran.stdout)?).await?;
            let created = shim.tasks.create(&bundle, &integration::stdio::Stdio::null()).await;
            let error = created.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(error.to_lowercase().contains("no space"), "create says {error:?}");
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
        } else {
            ensure!(ran.stderr.to_lowercase().contains("no space"), "{}", ran.stderr);
        }
        drop(log);
        deadline::until("the bundle's release", deadline::HANG, || umount(&bundle.dir).is_ok())
            .await
    })
}

#[test]
fn with_too_few_files_a_shim_either_serves_or_is_not_there() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim stays without serving for some limits");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let before = Snapshot::take(&fixture.scope());
        for limit in 4..20 {
            let bundle = fixture.bundle(&format!("n{limit}"), &Spec::new(&["true"]))?;
            let inner = Launch::new(fixture, &bundle).command("start")?;
            let inner = inner.as_std();
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -n \"$1\"; shift; exec \"$@\"", "sh"]);
            command.arg(limit.to_string()).arg(inner.get_program()).args(inner.get_args());
            command.env_clear().current_dir(&bundle.dir);
            for (name, value) in inner.get_envs() {
                command.env(name, value.unwrap_or_default());
            }
            let ran = run(command, b"").await?;
            if ran.status.success() {
                let shim = Shim::connect(fixture, Started::read(&ran.stdout)?).await?;
                shim.shutdown(&bundle.id).await?;
                shim.gone().await?;
            } else {
                ensure!(!ran.stderr.is_empty(), "{limit} files: failed without a word");
            }
            let left = settle(&fixture.scope(), &before, Duration::from_secs(5));
            ensure!(left.is_empty(), "{limit} files: {left:?}");
        }
        Ok(())
    })
}

#[test]
fn spec_that_is_no_file_or_has_no_end_is_refused() -> Result {
    use std::os::unix::fs::symlink;
    if paths::is_go_shim() {
        return skip("Go's shims read whatever is there");
    }
    type Make = fn(&Path) -> Result;
    let cases: [(&str, Make); 5] = [
        ("fifo", |file| Ok(nix::unistd::mkfifo(file, nix::sys::stat::Mode::S_IRWXU)?)),
        ("directory", |file| Ok(std::fs::create_dir(file)?)),
        ("link to itself", |file| Ok(symlink(file, file)?)),
        ("/dev/zero", |file| Ok(symlink("/dev/zero", file)?)),
        ("1 TiB", |file| Ok(std::fs::File::create(file)?.set_len(1 << 40)?)),
    ];
    for (name, make) in cases {
        scenario(async |fixture| {
            let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
            let file = bundle.dir.join("config.json");
            std::fs::remove_file(&file)?;
            make(&file)?;
            let ran = Launch::new(fixture, &bundle).run("start").await?;
            ran.check_refusal(fixture, name, "config.json")
        })?;
    }
    Ok(())
}

#[test]
fn fifos_in_place_of_a_bundles_files_hold_up_nobody() -> Result {
    use nix::sys::stat::Mode;
    if paths::is_go_shim() {
        return skip("Go's shims wait for the other end");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let spec = Spec::new(&["sleep", "1000"]);
        let container = integration::container::Container::run(fixture, "a", &spec).await?;
        let tasks = &container.shim.tasks;
        for file in ["options.json", "runtime"] {
            let bundle = fixture.bundle(&file.replace('.', "-"), &spec)?;
            nix::unistd::mkfifo(&bundle.dir.join(file), Mode::S_IRWXU)?;
            let created = tasks.create(&bundle, &integration::stdio::Stdio::null()).await;
            let error = created.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(error.contains(file), "{file}: {error:?}");
            tasks.state(container.id(), "").await?;
        }
        nix::unistd::mkfifo(&container.bundle.dir.join("e.process.json"), Mode::S_IRWXU)?;
        let started = container.exec("e", &["true"]).await;
        let error = started.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains("e.process.json"), "exec: {error:?}");
        container.retire().await?;
        // And those that `delete` reads, of a container that it knows nothing else of.
        for file in ["options.json", "runtime", "init.pid"] {
            let path = container.bundle.dir.join(file);
            let _ = std::fs::remove_file(&path);
            nix::unistd::mkfifo(&path, Mode::S_IRWXU)?;
        }
        let ran = Launch::new(fixture, &container.bundle).run("delete").await?;
        ensure!(ran.status.success(), "{}: {}", ran.status, ran.stderr);
        Ok(())
    })
}
