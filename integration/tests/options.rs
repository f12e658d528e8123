//! Runtime options of Create, and how they reach the OCI runtime.

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::Options;
use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Rule};
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, runc_options};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::{ensure, ensure_eq, paths};

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
