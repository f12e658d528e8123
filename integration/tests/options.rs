//! Runtime options of Create, and how they reach the OCI runtime.

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::Options;
use integration::cgroup::Cgroups;
use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Rule};
use integration::scenario::{scenario, skip};
use integration::shim::{Era, Launch, runc_options};
use integration::spec::Spec;
use integration::stdio::{Stdio, collect};
use integration::task::{Answer, TaskClient};
use integration::{deadline, ensure, ensure_eq, paths};
use ttrpc::Code;

#[test]
fn flags_of_the_runtime_are_those_of_the_options() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule::on("create").fails("enough seen")])?;
        let root = fixture.file("r").display().to_string();
        let mut options = Options::new();
        options.binary_name = fake.path.display().to_string();
        options.root = root.clone();
        (options.systemd_cgroup, options.no_pivot_root, options.no_new_keyring) =
            (true, true, true);
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = runc_options(&options)?;
        let answer = shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await;
        ensure!(answer.is_err(), "created");
        let calls = fake.calls_of("create")?;
        let call = calls.first().ok_or_else(|| Failure::new("no call of create"))?;
        for flag in ["--systemd-cgroup", "--no-pivot", "--no-new-keyring"] {
            ensure!(call.has(flag), "no {flag} in {call:?}");
        }
        let expected = format!("{root}/{}", fixture.namespace());
        ensure_eq!(call.value("--root"), Some(expected.as_str()), "root");
        ensure_eq!(call.value("--bundle"), Some(bundle.path().as_str()), "bundle");
        let log = bundle.dir.join("log.json").display().to_string();
        ensure_eq!(call.value("--log"), Some(log.as_str()), "log");
        ensure_eq!(call.argv.last(), Some(&bundle.id), "id");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn default_options_pass_no_flags() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install(fixture)?;
        fixture.offer("runc", &fake.path)?;
        std::fs::rename(fixture.bin().join("fakerunc.json"), fixture.bin().join("runc.json"))?;
        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        container.retire().await?;
        for call in fake.calls()? {
            for flag in ["--systemd-cgroup", "--no-pivot", "--no-new-keyring", "--force"] {
                ensure!(!call.has(flag), "{flag} in {call:?}");
            }
            let root = format!("/run/containerd/runc/{}", fixture.namespace());
            ensure_eq!(call.value("--root"), Some(root.as_str()), "root");
        }
        ensure!(!fake.calls_of("create")?.is_empty(), "runc was not found by its name");
        Ok(())
    })
}

#[test]
fn options_of_an_unknown_type_are_refused_and_leave_nothing() -> Result {
    if paths::is_go_shim() {
        return skip("some of Go's shims crash on it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let mut any = Any::new();
        any.type_url = "example.Unknown".to_owned();
        any.value = b"\x0a\x04text".to_vec();
        let answer = shim.tasks.create_with(&bundle, &Stdio::null(), Some(any)).await;
        let error = answer.err().ok_or_else(|| Failure::new("created"))?;
        ensure!(error.to_string().contains("example.Unknown"), "{error}");
        // Without options, the same container can still be created.
        shim.tasks.create(&bundle, &Stdio::null()).await?;
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn generic_options_in_toml_are_understood() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim knows its own options only");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install(fixture)?;
        let toml = format!("BinaryName = \"{}\"\nNoNewKeyring = true\n", fake.path.display());
        // runtimeoptions.v1.Options: 3 is the body of a configuration file.
        let mut value = vec![0x1a, u8::try_from(toml.len())?];
        value.extend(toml.bytes());
        let mut any = Any::new();
        any.type_url = "runtimeoptions.v1.Options".to_owned();
        any.value = value;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        shim.tasks.create_with(&bundle, &Stdio::null(), Some(any)).await?;
        let calls = fake.calls_of("create")?;
        ensure!(calls.iter().any(|call| call.has("--no-new-keyring")), "{calls:?}");
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn missing_runtime_is_named() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = integration::container::with_runtime(std::path::Path::new("no-runc"))?;
        let answer = shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await;
        let error = answer.err().ok_or_else(|| Failure::new("created"))?;
        ensure!(error.to_string().contains("no-runc"), "{error}");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

/// Does to a container everything that is done by calling the runtime.
async fn whole_life(tasks: &TaskClient, id: &str) -> Result {
    let process = integration::spec::process(&["true"]);
    tasks.start(id, "").await?;
    tasks.exec(id, "e", &process, &Stdio::null()).await?;
    tasks.start(id, "e").await?;
    tasks.wait(id, "e").await?;
    tasks.pids(id).await?;
    tasks.pause(id).await?;
    tasks.resume(id).await?;
    tasks.update(id, &serde_json::json!({ "pids": { "limit": 100 } })).await?;
    tasks.kill(id, "", 9).await?;
    tasks.wait(id, "").await?;
    Ok(())
}

#[test]
fn every_call_in_a_life_is_made_with_the_options_of_create() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            let _ = std::fs::remove_file(fixture.bin().join("fakerunc"));
            let _ = std::fs::remove_file(fixture.file("fakerunc.log"));
            let mut fake = FakeRunc::install_for(fixture, &runtime)?;
            // There need not be a systemd here.
            fake.hide(&["--systemd-cgroup"])?;
            let root = fixture.file(&format!("root-{name}")).display().to_string();
            let mut options = Options::new();
            options.binary_name = fake.path.display().to_string();
            options.root = root.clone();
            (options.systemd_cgroup, options.no_new_keyring) = (true, true);
            let bundle = fixture.bundle(name, &Spec::new(&["sleep", "1000"]))?;
            let shim = Launch::new(fixture, &bundle).start().await?;
            let options = runc_options(&options)?;
            shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await?;
            whole_life(&shim.tasks, &bundle.id).await?;
            shim.tasks.delete(&bundle.id, "").await?;
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
            let calls = fake.calls()?;
            let verbs: Vec<&str> = calls.iter().map(|call| call.subcommand.as_str()).collect();
            let right =
                ["create", "start", "exec", "ps", "pause", "resume", "update", "kill", "delete"];
            ensure_eq!(verbs, right, "calls of {name}");
            let (log, root) = (
                bundle.dir.join("log.json").display().to_string(),
                format!("{root}/{}", fixture.namespace()),
            );
            for call in &calls {
                let global =
                    ["--root", &root, "--log", &log, "--log-format", "json", "--systemd-cgroup"];
                ensure_eq!(call.global(), global, "{}", call.subcommand);
                let is_create = call.subcommand == "create";
                ensure_eq!(call.has("--no-new-keyring"), is_create, "{}", call.subcommand);
                ensure!(!call.has("--no-pivot") && !call.has("--force"), "{call:?}");
            }
        }
        Ok(())
    })
}

#[test]
fn root_can_be_changed_without_pivoting() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            let mut options = Options::new();
            options.binary_name = runtime.display().to_string();
            options.no_pivot_root = true;
            let bundle = fixture.bundle(name, &Spec::new(&["test", "-e", "/bin/busybox"]))?;
            let shim = Launch::new(fixture, &bundle).start().await?;
            let options = runc_options(&options)?;
            shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await?;
            shim.tasks.start(&bundle.id, "").await?;
            ensure_eq!(shim.tasks.wait(&bundle.id, "").await?.exit_status, 0, "{name}");
            shim.retire(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

/// `runtimeoptions.v1.Options` with one field of text: 2 is a file, 3 the configuration itself.
fn generic(field: u8, text: &str) -> Result<Any> {
    let mut value = vec![field << 3 | 2];
    let mut length = text.len();
    while length > 0x7f {
        value.push(u8::try_from(length & 0x7f)? | 0x80);
        length >>= 7;
    }
    value.push(u8::try_from(length)?);
    value.extend(text.bytes());
    let mut any = Any::new();
    any.type_url = "runtimeoptions.v1.Options".to_owned();
    any.value = value;
    Ok(any)
}

#[test]
fn every_key_of_generic_options_counts_in_a_message_and_in_a_file() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim knows its own options only");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule::on("create").fails("enough seen")])?;
        let root = fixture.file("r").display().to_string();
        let toml = format!(
            "# as CRI writes its table\nBinaryName = \"{}\"\nRoot = \"{root}\"\nSystemdCgroup = true\n\
             NoPivotRoot = true\nNoNewKeyring = true\nIoUid = 1000\nIoGid = 1001\nUnknown = \"x\"\n\
             [table]\nkey = 1\n",
            fake.path.display()
        );
        let file = fixture.file("options.toml");
        std::fs::write(&file, &toml)?;
        let forms =
            [("body", generic(3, &toml)?), ("path", generic(2, &file.display().to_string())?)];
        for (count, (name, options)) in (1..).zip(forms) {
            let bundle = fixture.bundle(name, &Spec::new(&["true"]))?;
            // `start` gets the same options, as its own.
            let shim = Launch::new(fixture, &bundle).options(options.clone()).start().await?;
            let answer = shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await;
            ensure!(answer.is_err(), "created with {name}");
            let calls = fake.calls_of("create")?;
            ensure_eq!(calls.len(), count, "calls of create");
            let call = calls.last().ok_or_else(|| Failure::new("no call of create"))?;
            for flag in ["--systemd-cgroup", "--no-pivot", "--no-new-keyring"] {
                ensure!(call.has(flag), "{name}: no {flag} in {call:?}");
            }
            let right = format!("{root}/{}", fixture.namespace());
            ensure_eq!(call.value("--root"), Some(right.as_str()), "root with {name}");
            let kept = bundle.file("options.json").unwrap_or_default();
            for part in ["\"io_uid\":1000", "\"io_gid\":1001", "\"systemd_cgroup\":true"] {
                ensure!(kept.contains(part), "no {part} in {kept}");
            }
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

fn code<T>(answer: Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

#[test]
fn options_that_cannot_be_read_are_refused_before_anything_is_done() -> Result {
    if paths::is_go_shim() {
        return skip("some of Go's shims crash on it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let mut garbled = Any::new();
        garbled.type_url = "containerd.runc.v1.Options".to_owned();
        garbled.value = vec![0xff; 9];
        let missing = fixture.file("missing").display().to_string();
        let broken = [
            ("garbled", garbled),
            ("no TOML", generic(3, "a = [")?),
            ("another type", generic(3, "SystemdCgroup = \"yes\"")?),
            ("a missing file", generic(2, &missing)?),
        ];
        for (what, options) in broken {
            let answer = shim.tasks.create_with(&bundle, &Stdio::null(), Some(options)).await;
            ensure_eq!(code(answer), Some(Code::INVALID_ARGUMENT), "{what}");
            ensure!(bundle.file("options.json").is_none(), "options of {what} are kept");
        }
        shim.tasks.create(&bundle, &Stdio::null()).await?;
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn streams_of_execs_belong_to_the_owner_too() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            let mut options = Options::new();
            options.binary_name = runtime.display().to_string();
            (options.io_uid, options.io_gid) = (1000, 1001);
            let spec = Spec::new(&["sleep", "1000"]).user(1000, 1001);
            let bundle = fixture.bundle(name, &spec)?;
            let shim = Launch::new(fixture, &bundle).start().await?;
            let (id, tasks) = (bundle.id.as_str(), &shim.tasks);
            tasks.create_with(&bundle, &Stdio::null(), Some(runc_options(&options)?)).await?;
            tasks.start(id, "").await?;
            let stdio = fixture.fifos(&format!("{name}-e"))?;
            let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
            let script = "for fd in 0 1 2; do stat -Lc '%u:%g' /proc/self/fd/$fd; done; \
                echo again > /dev/stderr";
            let mut process = integration::spec::process(&["sh", "-c", script]);
            process["user"] = serde_json::json!({ "uid": 1000, "gid": 1001 });
            tasks.exec(id, "e", &process, &stdio).await?;
            tasks.start(id, "e").await?;
            ensure_eq!(tasks.wait(id, "e").await?.exit_status, 0, "exit status, {name}");
            tasks.delete(id, "e").await?;
            ensure_eq!(out.text().await?, "1000:1001\n".repeat(3), "owners, {name}");
            ensure_eq!(err.text().await?, "again\n", "stderr, {name}");
            shim.retire(id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

/// The top of the hierarchy that counts processes: a cgroup there takes any process at once.
fn top() -> Result<std::path::PathBuf> {
    let own = Cgroups::of(std::process::id())?;
    let mut top = own.dir("pids")?.to_path_buf();
    while top.parent().is_some_and(|parent| parent.join("cgroup.procs").exists()) {
        top.pop();
    }
    Ok(top)
}

#[test]
fn cgroup_of_the_shim_is_joined_in_every_era_and_the_container_is_elsewhere() -> Result {
    if paths::is_go_shim() {
        return skip("each of Go's shims knows its own era");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let name = fixture.id("shim");
        let dir = top()?.join(&name);
        let mut message = Options::new();
        message.shim_cgroup = format!("/{name}");
        let own = runc_options(&message)?;
        let generic = generic(3, &format!("ShimCgroup = \"/{name}\""))?;
        for (what, era, options) in [
            ("old", Era::V1_6, &own),
            ("new", Era::V2_3, &own),
            ("old-generic", Era::V1_7, &generic),
            ("new-generic", Era::V2_3, &generic),
        ] {
            std::fs::create_dir(&dir)?;
            let bundle = fixture.bundle(what, &Spec::new(&["sleep", "1000"]))?;
            let launch = Launch::new(fixture, &bundle).era(era).options(options.clone());
            let shim = launch.start().await?;
            let members = std::fs::read_to_string(dir.join("cgroup.procs"))?;
            let mut request = integration::task::create_request(&bundle, &Stdio::null());
            request.options = Some(options.clone()).into();
            let created: containerd_shim_protos::api::CreateTaskResponse =
                shim.tasks.call("Create", &request, deadline::HANG).await?;
            let container = Cgroups::of(created.pid)?.dir("pids")?.to_path_buf();
            shim.retire(&bundle.id).await?;
            shim.gone().await?;
            // Busy until the kernel has taken the last process out.
            let removed = || std::fs::remove_dir(&dir).is_ok();
            deadline::until("an empty cgroup", deadline::HANG, removed).await?;
            ensure_eq!(members.trim(), shim.pid.to_string(), "members, {what}");
            ensure!(
                !container.starts_with(&dir),
                "{} is below the shim's, {what}",
                container.display()
            );
        }
        Ok(())
    })
}
