//! What a container's processes get from their shim: nothing that is the shim's own.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration::bundle::Bundle;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::hybrid::both_runtimes;
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim};
use integration::spec::{self, Spec};
use integration::stdio::collect;
use integration::{ensure, ensure_eq, paths};
use serde_json::json;
use tokio::process::Command;

/// A field of `/proc/<pid>/status`, trimmed.
fn field(status: &str, name: &str) -> Result<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.ok_or_else(|| Failure::new(format!("no {name} in {status:?}")))?.trim().to_owned())
}

/// The status of a child of this process, as a shim is one.
async fn own_status() -> Result<String> {
    let output = Command::new("cat").arg("/proc/self/status").output().await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What an exec of this command line prints.
async fn output(
    fixture: &Fixture,
    shim: &Shim,
    id: &str,
    name: &str,
    script: &str,
) -> Result<String> {
    let stdio = fixture.fifos(&format!("{id}-{name}"))?.without_stdin();
    let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
    shim.tasks.exec(id, name, &spec::process(&["sh", "-c", script]), &stdio).await?;
    shim.tasks.start(id, name).await?;
    shim.tasks.wait(id, name).await?;
    shim.tasks.delete(id, name).await?;
    let said = err.text().await?;
    ensure!(said.is_empty(), "{script}: {said}");
    out.text().await
}

/// A container that sleeps after its init has said `script`'s output, and that output.
async fn saying(
    fixture: &Fixture,
    launch: Launch<'_>,
    bundle: &Bundle,
    runtime: &Path,
) -> Result<(Shim, String)> {
    let shim = launch.start().await?;
    let stdio = fixture.fifos(&format!("{}-init", bundle.id))?.without_stdin();
    let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
    let options = integration::container::with_runtime(runtime)?;
    shim.tasks.create_with(bundle, &stdio, Some(options)).await?;
    shim.tasks.start(&bundle.id, "").await?;
    let said = out.text().await?;
    drop(err);
    Ok((shim, said))
}

/// Says what `script` says and closes its output, then sleeps.
fn says(script: &str) -> Spec {
    Spec::shell(&format!("{script}; exec sleep 1000 >/dev/null 2>&1"))
}

#[test]
fn only_the_standard_streams_are_open() -> Result {
    // The shell opens the directory that it lists.
    const LIST: &str = "ls /proc/self/fd | wc -l";
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, runtime) in both_runtimes()? {
            let bundle = fixture.bundle(name, &says(LIST))?;
            let launch = Launch::new(fixture, &bundle);
            let (shim, said) = saying(fixture, launch, &bundle, &runtime).await?;
            ensure_eq!(said.trim(), "4", "descriptors of init, {name}");
            // With others beside it whose descriptors the shim has.
            for exec in ["e1", "e2"] {
                let said = output(fixture, &shim, &bundle.id, exec, LIST).await?;
                ensure_eq!(said.trim(), "4", "descriptors of {exec}, {name}");
            }
            shim.retire(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn mask_signals_and_memory_are_those_of_the_spec_and_the_host() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let host = own_status().await?;
        for (name, runtime) in both_runtimes()? {
            let masked = says("cat /proc/self/status")
                .set("/process/user", "umask", json!(0o27))
                .set("/process", "oomScoreAdj", json!(555));
            for (kind, spec, umask) in
                [("spec", masked, "0027"), ("plain", says("cat /proc/self/status"), "0022")]
            {
                let bundle = fixture.bundle(&format!("{name}-{kind}"), &spec)?;
                let launch = Launch::new(fixture, &bundle);
                let (shim, said) = saying(fixture, launch, &bundle, &runtime).await?;
                ensure_eq!(field(&said, "Umask")?, umask, "umask, {name}");
                for signals in ["SigBlk", "SigIgn"] {
                    let (inside, outside) = (field(&said, signals)?, field(&host, signals)?);
                    // The C library leaves one of its own ignored in what it spawns.
                    let allowed = u64::from_str_radix(&outside, 16)?;
                    let added = u64::from_str_radix(&inside, 16)? & !allowed;
                    ensure_eq!(added, 0, "{signals} {inside}, {name}");
                }
                // Huge pages are the host's to allow, not the shim's.
                let huge = "THP_enabled";
                ensure_eq!(field(&said, huge)?, field(&host, huge)?, "huge pages, {name}");
                shim.retire(&bundle.id).await?;
                shim.gone().await?;
            }
        }
        Ok(())
    })
}

#[test]
fn score_for_the_lack_of_memory_is_one_worse_for_the_shim_and_the_specs_for_the_container() -> Result
{
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let score = |pid: &str| -> Result<i32> {
            Ok(fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?.trim().parse()?)
        };
        for (name, runtime) in both_runtimes()? {
            let spec = Spec::new(&["sleep", "1000"]).set("/process", "oomScoreAdj", json!(555));
            let bundle = fixture.bundle(name, &spec)?;
            let shim = Launch::new(fixture, &bundle).start().await?;
            ensure_eq!(score(&shim.pid.to_string())?, score("self")? + 1, "the shim's, {name}");
            let options = integration::container::with_runtime(&runtime)?;
            let none = integration::stdio::Stdio::null();
            let pid = shim.tasks.create_with(&bundle, &none, Some(options)).await?;
            shim.tasks.start(&bundle.id, "").await?;
            ensure_eq!(score(&pid.to_string())?, 555, "the container's, {name}");
            shim.retire(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

/// A runtime that writes down its environment.
fn recording(fixture: &Fixture, name: &str, runtime: &Path) -> Result<(PathBuf, PathBuf)> {
    // Not in the place where a real runtime may be linked.
    let file = |kind: &str| fixture.file(&format!("{kind}-{name}"));
    let (program, record) = (file("runtime"), file("env"));
    let (shown, busybox) = (record.display(), paths::busybox()?);
    let text = format!(
        "#!{0} sh\n{0} tr '\\0' '\\n' </proc/$$/environ >>{shown}\nexec {1} \"$@\"\n",
        busybox.display(),
        runtime.display()
    );
    File::create_new(&program)?.write_all(text.as_bytes())?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok((program, record))
}

#[test]
fn environment_of_the_daemon_reaches_the_runtime_without_its_notify_socket() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let socket = fixture.file("notify.sock").display().to_string();
        for (name, runtime) in both_runtimes()? {
            let (program, record) = recording(fixture, name, &runtime)?;
            let bundle = fixture.bundle(name, &says("env"))?;
            let launch = Launch::new(fixture, &bundle)
                .env("NOTIFY_SOCKET", &socket)
                .env("HTTPS_PROXY", "http://proxy.example");
            let (shim, said) = saying(fixture, launch, &bundle, &program).await?;
            let seen = output(fixture, &shim, &bundle.id, "e", "env").await?;
            shim.retire(&bundle.id).await?;
            shim.gone().await?;
            let given = fs::read_to_string(&record)?;
            ensure!(given.contains("HTTPS_PROXY=http://proxy.example"), "{given}");
            ensure!(!given.contains("NOTIFY_SOCKET"), "{name} was told to notify: {given}");
            for text in [said, seen] {
                ensure!(text.contains("TERM=xterm"), "{text}");
                for foreign in ["NOTIFY_SOCKET", "HTTPS_PROXY", "TTRPC_ADDRESS", "GOMAXPROCS"] {
                    ensure!(!text.contains(foreign), "{foreign} in the container: {text}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn limits_of_files_are_those_of_the_daemon() -> Result {
    if paths::is_go_shim() {
        return skip("Go raises its own limit");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let own = fs::read_to_string("/proc/self/limits")?;
        let line = own.lines().find(|line| line.starts_with("Max open files"));
        let line = line.ok_or_else(|| Failure::new("no limit of files"))?;
        let (_, crun) =
            both_runtimes()?.into_iter().last().ok_or_else(|| Failure::new("no crun"))?;
        let bundle = fixture.bundle("a", &says("cat /proc/self/limits"))?;
        let (shim, said) = saying(fixture, Launch::new(fixture, &bundle), &bundle, &crun).await?;
        ensure!(said.lines().any(|one| one == line), "{line:?} is not in {said}");
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}
