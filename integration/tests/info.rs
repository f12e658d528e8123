//! Questions to the binary that need no container: `-v`, `-version` and `-info`.

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::types::introspection::RuntimeInfo;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::{run, runc_options};
use integration::{ensure, ensure_eq, paths};
use tokio::process::Command;

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
        ran.check_refusal(fixture, "missing runtime", "/nonexistent/runtime")?;
        let ran = run(info(fixture)?, &[0xff; 64]).await?;
        ran.check_refusal(fixture, "garbage", "options")
    })
}
