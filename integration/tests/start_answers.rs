//! The command line of the shim: what `start`, `-v`, `-version` and `-info` answer, and how bad input is refused.

use std::path::Path;
use std::process::Stdio as ProcessStdio;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::types::introspection::RuntimeInfo;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::leak::Snapshot;
use integration::scenario::{scenario, skip};
use integration::shim::{ERAS, Era, Form, Launch, Ran, Shim, Started, run, runc_options};
use integration::spec::Spec;
use integration::task::{V2, V3};
use integration::{deadline, ensure, ensure_eq, paths};
use tokio::process::Command;

/// A refusal is one line that names the thing, and leaves nothing: no answer, no process, no socket.
fn check_refusal(fixture: &Fixture, case: &str, ran: &Ran, names: &str) -> Result {
    let said = &ran.stderr;
    ensure!(!ran.status.success(), "{case}: success");
    ensure!(ran.status.code().is_some(), "{case}: {}", ran.status);
    ensure!(ran.stdout.is_empty(), "{case}: an answer on stdout");
    ensure!(
        said.to_lowercase().contains(&names.to_lowercase()),
        "{case}: no {names:?} in {said:?}"
    );
    ensure!(!said.contains("panic"), "{case}: {said}");
    if !paths::is_go_shim() {
        ensure_eq!(said.trim_end().lines().count(), 1, "{case}: lines of {said:?}");
    }
    let limit = std::time::Duration::from_secs(5);
    let left = integration::leak::settle(&fixture.scope(), &Snapshot::default(), limit);
    ensure!(left.is_empty(), "{case}: left behind {left:?}");
    Ok(())
}

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
fn overlong_socket_directory_is_refused_with_the_limit() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.3 know no socket directory");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let dir = fixture.file(&"d".repeat(80));
        let launch = Launch::new(fixture, &bundle).era(Era::V2_3).socket_dir(dir.clone());
        let ran = launch.run("start").await?;
        check_refusal(fixture, "socket dir", &ran, "too long")?;
        ensure!(!dir.exists(), "the directory was made");
        Ok(())
    })
}

#[test]
fn version_is_printed_without_a_namespace() -> Result {
    scenario(async |_| {
        for flag in ["-v", "-version", "--version"] {
            if paths::is_go_shim() && flag != "-v" {
                continue;
            }
            let mut command = Command::new(paths::shim()?);
            command.arg(flag).env_clear();
            let ran = run(command, b"").await?;
            ensure!(ran.status.success(), "{flag}: {} {}", ran.status, ran.stderr);
            ensure!(!ran.stdout.is_empty() && ran.stderr.is_empty(), "{flag}: {ran:?}");
        }
        Ok(())
    })
}

fn info(fixture: &Fixture) -> Result<Command> {
    let mut command = Command::new(paths::shim()?);
    command.arg("-info").env_clear().env("PATH", fixture.path());
    Ok(command)
}

fn options_with_binary(binary: &str) -> Result<Vec<u8>> {
    let mut options = containerd_shim_protos::shim::oci::Options::new();
    options.binary_name = binary.to_owned();
    Ok(runc_options(&options)?.write_to_bytes()?)
}

#[test]
fn info_names_the_runtime_and_its_features() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.0 have no -info");
    }
    scenario(async |fixture| {
        let crun = paths::crun()?.display().to_string();
        let cases = [
            ("nothing", Vec::new(), true),
            ("default", options_with_binary("")?, true),
            ("crun", options_with_binary(&crun)?, true),
            // A runtime without the `features` command is a runtime all the same.
            ("no features", options_with_binary("/bin/false")?, false),
        ];
        for (case, stdin, features) in cases {
            let ran = run(info(fixture)?, &stdin).await?;
            ensure!(ran.status.success(), "{case}: {} {}", ran.status, ran.stderr);
            ensure!(ran.stderr.is_empty(), "{case}: {}", ran.stderr);
            let info = RuntimeInfo::parse_from_bytes(&ran.stdout)?;
            ensure_eq!(info.name, "io.containerd.runc.v2", "{case}");
            ensure!(!info.version.version.is_empty(), "{case}: no version");
            ensure_eq!(info.features.is_some(), features, "{case}: features");
            if let Some(any) = info.features.as_ref() {
                let url = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";
                ensure_eq!(any.type_url, url, "{case}");
                let json: serde_json::Value = serde_json::from_slice(&any.value)?;
                ensure!(json["ociVersionMax"].is_string(), "{case}: {json}");
            }
            if !stdin.is_empty() {
                ensure_eq!(info.options.write_to_bytes()?, stdin, "{case}: the options' echo");
            }
        }
        Ok(())
    })
}

#[test]
fn info_refuses_what_it_cannot_read_or_run() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.0 have no -info");
    }
    scenario(async |fixture| {
        let missing = options_with_binary("/nonexistent/runtime")?;
        let ran = run(info(fixture)?, &missing).await?;
        check_refusal(fixture, "missing runtime", &ran, "/nonexistent/runtime")?;
        let ran = run(info(fixture)?, &[0xff; 64]).await?;
        check_refusal(fixture, "garbage", &ran, "options")
    })
}

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
            check_refusal(fixture, case.name, &ran, case.names)
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
        check_refusal(fixture, "no namespace", &ran, "namespace")
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
        check_refusal(fixture, "11 MiB", &ran, "stdin")?;
        let mut command = launch.command("start")?;
        command.stdin(std::fs::File::open("/dev/zero")?);
        command.stdout(ProcessStdio::piped()).stderr(ProcessStdio::piped());
        let output =
            tokio::time::timeout(deadline::HANG, command.spawn()?.wait_with_output()).await;
        let output = output.map_err(|_| Failure::new("/dev/zero is read for ever"))??;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let ran = Ran { status: output.status, stdout: output.stdout, stderr };
        check_refusal(fixture, "/dev/zero", &ran, "stdin")
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
        check_refusal(fixture, "garbage", &ran, "stdin")
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
fn start_works_with_stdin_closed() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let inner = Launch::new(fixture, &bundle).command("start")?;
        let inner = inner.as_std();
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 0<&-", "sh"])
            .arg(inner.get_program())
            .args(inner.get_args());
        command.env_clear().current_dir(&bundle.dir);
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let ran = run(command, b"").await?;
        ensure!(ran.status.success(), "{} {}", ran.status, ran.stderr);
        let shim = Shim::connect(fixture, Started::read(&ran.stdout)?).await?;
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
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
        check_refusal(fixture, "shim cgroup", &ran, "cgroup")
    })
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
