//! What the daemon shows to operators: its metrics, `ls` and `doctor`.

use std::fs;
use std::path::Path;

use integration::container::Container;
use integration::containerd::Containerd;
use integration::daemon::Daemon;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, is_alive};
use integration::spec::Spec;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn with_daemon<F>(test: F) -> Result
where
    F: AsyncFnOnce(&Fixture, &Containerd<'_>, &Daemon<'_>) -> Result,
{
    if paths::containerd("2").is_none() {
        return skip("no containerd 2 in this machine's mirror");
    }
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let containerd = Containerd::start(fixture, "2").await?;
        containerd.import_image().await?;
        let daemon = Daemon::start(fixture, &containerd).await?;
        test(fixture, &containerd, &daemon).await?;
        daemon.stop().await?;
        containerd.stop().await
    })
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn metrics_count_what_was_done() -> Result {
    with_daemon(async |fixture, _, daemon| {
        let id = daemon.id("one");
        daemon.run_detached(&id).await?;
        daemon.refused(&["tasks", "pause", "ghost"]).await?;
        let namespace = fixture.namespace();
        let page = daemon.metrics().await?;
        let has =
            |line: &str| page.lines().any(|have| have == format!("containerd_task_manager_{line}"));
        ensure!(page.starts_with("HTTP/1.1 200"), "{page}");
        ensure!(has(&format!("tasks{{namespace=\"{namespace}\"}} 1")), "{page}");
        ensure!(has("shims{api=\"3\"} 1"), "{page}");
        ensure!(has("calls_total{method=\"Create\",code=\"Ok\"} 1"), "{page}");
        ensure!(has("call_duration_seconds_count{method=\"Create\"} 1"), "{page}");
        daemon.remove(&id).await?;
        let page = daemon.metrics().await?;
        ensure!(page.contains("calls_total{method=\"Delete\",code=\"Ok\"} 1"), "{page}");
        ensure!(!page.contains("tasks{namespace"), "{page}");
        Ok(())
    })
}

#[test]
fn ls_shows_the_shims_of_any_manager() -> Result {
    with_daemon(async |fixture, containerd, daemon| {
        let ours = daemon.id("ours");
        let pid = daemon.run_detached(&ours).await?;
        let stock = containerd.id("stock");
        let run =
            ["run", "--detach", "--null-io", "localhost/busybox:test", &stock, "sleep", "1000"];
        containerd.must(&run).await?;
        let bundles = containerd.bundles();
        let base = bundles.ancestors().nth(2).unwrap_or(&bundles);
        // Of a containerd, the directory above is understood too.
        let (state, base) = (text(&daemon.state()), text(base));
        let rows = daemon.tool_json(&["ls", "--json", "--state", &state, "--state", &base]).await?;
        ensure_eq!(rows.as_array().map(Vec::len), Some(2), "rows of {rows}");
        let row =
            |id: &str| rows.as_array().and_then(|rows| rows.iter().find(|row| row["id"] == id));
        for id in [&ours, &stock] {
            let Some(row) = row(id) else {
                return Err(integration::failure::Failure::new("no row"));
            };
            ensure_eq!(row["namespace"], fixture.namespace(), "namespace");
            ensure_eq!(row["status"], "running", "status");
            ensure!(matches!(row["api"].as_i64(), Some(2 | 3)), "no API version in {row}");
            let shim = u32::try_from(row["shim_pid"].as_u64().unwrap_or_default())?;
            ensure!(is_alive(shim), "no shim {shim}");
            ensure!(row["memory_kb"].as_u64().is_some_and(|kb| kb > 0), "no memory in {row}");
            ensure!(row["age_seconds"].is_u64(), "no age in {row}");
        }
        ensure_eq!(row(&ours).map(|row| row["pid"].clone()), Some(Value::from(pid)), "pid");
        let table = daemon.tool(&["ls", "--state", &state]).await?;
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        ensure!(table.starts_with("NAMESPACE") && table.contains(&ours), "{table}");
        containerd.output(&["tasks", "rm", "--force", &stock]).await?;
        containerd.must(&["containers", "rm", &stock]).await?;
        daemon.remove(&ours).await
    })
}

/// One of each kind of remains, beside live containers of two managers.
#[test]
fn doctor_finds_each_kind_of_remains_and_touches_nothing_alive() -> Result {
    with_daemon(async |fixture, containerd, daemon| {
        let _sink = fixture.fake_containerd()?;
        let ours = daemon.id("ours");
        let our_init = daemon.run_detached(&ours).await?;
        let stock = containerd.id("stock");
        let run =
            ["run", "--detach", "--null-io", "localhost/busybox:test", &stock, "sleep", "1000"];
        containerd.must(&run).await?;
        // A shim that was started and never asked to create.
        let leaked = fixture.bundle("leaked", &Spec::new(&["true"]))?;
        let leaked = Launch::new(fixture, &leaked).start().await?;
        // A shim killed together with its container, and one killed alone.
        let dead = Container::run(fixture, "dead", &Spec::new(&["sleep", "1000"])).await?;
        let orphan = Container::run(fixture, "orphan", &Spec::new(&["sleep", "1000"])).await?;
        for pid in [dead.shim.pid, dead.pid, orphan.shim.pid] {
            kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?;
            deadline::until("a killed process's end", deadline::HANG, || !is_alive(pid)).await?;
        }
        // A mount in a bundle that is half removed.
        let mounted = fixture.bundles().join(".gone/rootfs");
        fs::create_dir_all(&mounted)?;
        mount(Some("tmpfs"), &mounted, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;

        // A socket of a shim that was killed. The usual directory is that of all tests.
        let sockets = fixture.file("s");
        let dead_socket = sockets.join("dead");
        drop(std::os::unix::net::UnixListener::bind(&dead_socket)?);
        let live_socket = sockets.join("live");
        let _listener = std::os::unix::net::UnixListener::bind(&live_socket)?;

        let states = [
            text(&daemon.state()),
            text(containerd.bundles().parent().unwrap_or(Path::new("/"))),
            text(fixture.bundles().parent().unwrap_or(Path::new("/"))),
        ];
        let (behind, sockets) = (text(&containerd.address()), text(&sockets));
        let arguments = |more: &[&'static str]| {
            let mut all = vec!["doctor", "--json", "--everything", "--containerd", behind.as_str()];
            all.extend(states.iter().flat_map(|state| ["--state", state.as_str()]));
            all.extend(["--sockets", sockets.as_str()]);
            all.extend(more);
            all.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let doctor = async |more: &[&'static str]| {
            let all = arguments(more);
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            daemon.tool_json(&all).await
        };
        let kinds = |findings: &Value| {
            let all = findings.as_array().into_iter().flatten();
            all.map(|finding| format!("{} {}", finding["kind"], finding["fixable"]))
                .collect::<Vec<_>>()
        };

        let before = doctor(&[]).await?;
        let expected = [
            "\"leaked-shim\" true",
            "\"orphan\" false",
            "\"dead-bundle\" true",
            "\"stray-mount\" true",
            "\"dead-socket\" true",
        ];
        ensure_eq!(kinds(&before), expected, "findings of {before}");
        ensure_eq!(kinds(&doctor(&[]).await?), expected, "findings, looked at twice");
        ensure!(leaked.is_alive(), "looking has ended a shim");

        let fixed = doctor(&["--fix"]).await?;
        leaked.gone().await?;
        let dead_bundle = dead.bundle.dir.clone();
        ensure!(!dead_bundle.exists(), "the dead bundle stays: {fixed}");
        ensure!(!dead_socket.exists() && live_socket.exists(), "sockets: {fixed}");
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&text(&mounted)), "it is still mounted: {fixed}");
        ensure!(
            kinds(&fixed).contains(&"\"stale-state\" true".to_owned()),
            "runtime state: {fixed}"
        );
        ensure!(is_alive(orphan.pid), "the orphan was killed");
        ensure!(is_alive(our_init), "a live container was killed");
        daemon.must(&["tasks", "exec", "--exec-id", "e", &ours, "true"]).await?;
        containerd.must(&["tasks", "exec", "--exec-id", "e", &stock, "true"]).await?;

        kill(Pid::from_raw(orphan.pid.try_into()?), Signal::SIGKILL)?;
        deadline::until("the orphan's end", deadline::HANG, || !is_alive(orphan.pid)).await?;
        doctor(&["--fix"]).await?;
        ensure_eq!(kinds(&doctor(&[]).await?), Vec::<String>::new(), "what is left");
        fs::remove_file(&live_socket)?;
        for killed in [&dead, &orphan] {
            fs::remove_file(killed.shim.started.socket())?;
        }
        containerd.output(&["tasks", "rm", "--force", &stock]).await?;
        containerd.must(&["containers", "rm", &stock]).await?;
        daemon.remove(&ours).await
    })
}
