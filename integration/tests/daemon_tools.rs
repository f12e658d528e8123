//! What the daemon shows to operators: its metrics and `ls`.

use std::path::Path;

use integration::containerd::Containerd;
use integration::daemon::Daemon;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::{ensure, ensure_eq, paths};
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
