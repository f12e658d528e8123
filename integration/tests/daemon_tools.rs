//! What the daemon shows to operators: its metrics and `ls`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use integration::daemon::in_front_of;
use integration::deadline::{self, HANG};
use integration::failure::{Failure, Result};
use integration::metrics::value;
use integration::scenario::skip;
use integration::shim::is_alive;
use integration::task::{TaskClient, V3};
use integration::{ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn metrics_count_what_was_done() -> Result {
    in_front_of("2", async |fixture, _, daemon| {
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
    in_front_of("2", async |fixture, containerd, daemon| {
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

/// Names of the fields that docs/json.md describes for a command, and those of them that may be missing.
fn documented(command: &str) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let page = fs::read_to_string(paths::workspace().join("docs/json.md"))?;
    let section = page.split("\n## ").find(|part| part.starts_with(&format!("`{command}`")));
    let rows = section.unwrap_or_default().lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name.to_owned(), rest.contains("may be missing")))
    });
    let rows: Vec<_> = rows.collect();
    let optional = rows.iter().filter(|row| row.1).map(|row| row.0.clone()).collect();
    Ok((rows.into_iter().map(|row| row.0).collect(), optional))
}

fn fields(object: &Value) -> BTreeSet<String> {
    object.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}

#[test]
fn json_has_the_fields_that_are_documented() -> Result {
    in_front_of("2", async |fixture, _, daemon| {
        let id = daemon.id("one");
        daemon.run_detached(&id).await?;
        let state = text(&daemon.state());
        let rows = daemon.tool_json(&["ls", "--json", "--state", &state]).await?;
        ensure_eq!(fields(&rows[0]), documented("ls")?.0, "fields of ls");
        // Something for doctor to find, in a place of its own.
        let sockets = text(&fixture.file("s"));
        let dead = fixture.file("s").join("dead");
        drop(UnixListener::bind(&dead)?);
        let words = ["doctor", "--json", "--everything", "--state", &state, "--sockets", &sockets];
        let (all, optional) = documented("doctor")?;
        for fix in [&[][..], &["--fix"]] {
            let found = daemon.tool_json(&[&words[..], fix].concat()).await?;
            let found = fields(&found[0]);
            ensure!(found.is_subset(&all), "not documented: {:?}", found.difference(&all));
            let missing: Vec<_> = all.difference(&found).collect();
            ensure!(missing.iter().all(|name| optional.contains(*name)), "missing: {missing:?}");
        }
        ensure!(!dead.exists(), "the dead socket stays");
        daemon.remove(&id).await
    })
}

/// A shim that says it speaks the newest API and speaks an older one: Go's of 1.7, with another answer to `start`.
const BOASTER: &str = r#"#!/bin/sh
for word; do last=$word; done
[ "$last" = start ] || exec GO_SHIM "$@"
address=$(GO_SHIM "$@") || exit
printf '{"version":3,"address":"%s","protocol":"ttrpc"}' "$address"
"#;

#[test]
fn a_shim_that_is_older_than_it_says_is_counted() -> Result {
    let Some(go) = paths::containerd("1.7") else {
        return skip("no containerd 1.7 in this machine's mirror");
    };
    in_front_of("2", async |fixture, _, daemon| {
        let script = fixture.file("boaster");
        let shim = text(&go.join("containerd-shim-runc-v2"));
        fs::write(&script, BOASTER.replace("GO_SHIM", &shim))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        fixture.offer("containerd-shim-runc-v2", &script)?;
        ensure_eq!(value(&daemon.metrics().await?, "downgrades_total"), Some(0.0), "before");
        let id = daemon.id("boaster");
        daemon.run_detached(&id).await?;
        let page = daemon.metrics().await?;
        ensure_eq!(value(&page, "downgrades_total"), Some(1.0), "downgrades of {page}");
        ensure_eq!(value(&page, "shims{api=\"2\"}"), Some(1.0), "shims of {page}");
        daemon.remove(&id).await
    })
}

#[test]
fn what_is_found_at_start_is_counted_by_what_became_of_it() -> Result {
    in_front_of("2", async |fixture, _, daemon| {
        let [live, leaked, dead] = ["live", "leaked", "dead"].map(|name| daemon.id(name));
        for id in [&live, &leaked, &dead] {
            daemon.run_detached(id).await?;
        }
        let state = text(&daemon.state());
        let rows = daemon.tool_json(&["ls", "--json", "--state", &state]).await?;
        let row = |id: &String| {
            rows.as_array().and_then(|rows| rows.iter().find(|row| row["id"] == **id)).cloned()
        };
        daemon.signal(Signal::SIGKILL).await?;
        // One shim loses its task, as when a manager is killed in the middle of a delete; one is killed.
        let row_of = row(&leaked).unwrap_or_default();
        let address = row_of["address"].as_str().unwrap_or_default();
        let shim = TaskClient::connect(address, V3, fixture.namespace()).await?;
        shim.kill(&leaked, "", 9).await?;
        shim.wait(&leaked, "").await?;
        shim.delete(&leaked, "").await?;
        let pid = row(&dead).unwrap_or_default()["shim_pid"].as_u64().unwrap_or_default();
        ensure!(pid > 1, "no shim of {dead} in {rows}");
        let pid = u32::try_from(pid)?;
        kill(Pid::from_raw(pid.try_into()?), Signal::SIGKILL)?;
        deadline::until("the shim's end", HANG, || !is_alive(pid)).await?;

        daemon.start_again().await?;
        let counted = async |outcome: &str| {
            let name = format!("loaded_total{{outcome=\"{outcome}\"}}");
            Result::Ok(value(&daemon.metrics().await?, &name))
        };
        let limit = Instant::now() + HANG;
        // Cleaning up goes on while it serves.
        while counted("dead_cleaned").await? != Some(1.0) && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for outcome in ["live", "leak_reaped", "dead_cleaned"] {
            ensure_eq!(counted(outcome).await?, Some(1.0), "{outcome}");
        }
        ensure_eq!(counted("kept").await?, Some(0.0), "kept");
        let page = daemon.metrics().await?;
        let published = "events_published_total{topic=\"/tasks/exit\"}";
        ensure_eq!(value(&page, published), Some(1.0), "exits published: {page}");
        for id in [&leaked, &dead] {
            daemon.must(&["containers", "rm", id]).await?;
        }
        daemon.remove(&live).await
    })
}

/// A sample of the text format: its name, its labels, its value.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (series, number) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    (!name.is_empty() && name.bytes().all(is_name)).then_some(())?;
    Some((name, labels, number.parse().ok()?))
}

#[test]
fn the_page_of_metrics_is_in_prometheus_text_format() -> Result {
    in_front_of("2", async |_, _, daemon| {
        let id = daemon.id("one");
        daemon.run_detached(&id).await?;
        daemon.remove(&id).await?;
        daemon.refused(&["tasks", "pause", "ghost"]).await?;
        let answer = daemon.metrics().await?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        ensure!(head.contains("text/plain; version=0.0.4"), "{head}");
        let (mut kinds, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut helped = BTreeSet::new();
        for line in body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap_or_default();
                ensure!(!help.is_empty() && helped.insert(name), "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap_or_default();
                ensure!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                ensure!(helped.contains(name), "no help before {line}");
                ensure!((kind == "counter") == name.ends_with("_total"), "{line}");
                ensure!(kinds.insert(name, kind).is_none(), "twice: {line}");
            } else {
                let Some((name, labels, _)) = sample(line) else {
                    return Err(Failure::new(format!("no sample: {line}")));
                };
                let parts = ["_bucket", "_sum", "_count"];
                let of_histogram = parts.iter().find_map(|part| name.strip_suffix(part));
                let family = of_histogram.filter(|family| kinds.contains_key(family));
                ensure!(kinds.contains_key(family.unwrap_or(name)), "no type before {line}");
                ensure!(seen.insert((name, labels)), "twice: {line}");
            }
        }
        let kinds_of = |kind: &str| kinds.values().filter(|of| **of == kind).count();
        ensure!(kinds_of("counter") > 3 && kinds_of("histogram") > 0, "{kinds:?}");
        Ok(())
    })
}
