//! What is shown for every containerd.

use std::time::Instant;

use integration::containerd::Containerd;
use integration::failure::{Context, Failure, Result};
use integration::fixture::Fixture;
use integration::leak::Usage;
use integration::page::{Page, Shown};
use integration::shim::is_alive;
use integration::terminal::OnTerminal;
use integration::{deadline, ensure, ensure_eq, image, paths};

use crate::managed;

/// Plays all scenes on one daemon; true if all went well.
pub(crate) async fn play(page: &mut Page, fixture: &Fixture, series: &str) -> Result<bool> {
    let start = Instant::now();
    let mut daemon = Containerd::start(fixture, series).await?;
    page.title(&format!("containerd {}", daemon.version().await?));
    let up = start.elapsed();
    let start = Instant::now();
    daemon.import_image().await?;
    page.good("daemon", "up, with root, state and socket of its own", Some(up));
    page.good("image", "a static busybox, made here and imported", Some(start.elapsed()));
    let mut good = true;
    for runtime in ["runc", "crun"] {
        let Some((version, path)) = paths::runtimes(runtime).pop() else {
            page.skipped(runtime, "not in this machine's mirror");
            continue;
        };
        fixture.offer("runc", &path)?;
        page.note(&format!("with {runtime} {version}"));
        good &= page.tell("one-shot", one_shot(&daemon, runtime).await);
        good &= page.tell("long one", long_one(&daemon, runtime).await);
        good &= page.tell("terminal", on_a_terminal(&daemon, runtime).await);
    }
    good &= page.tell("memory", memory(&daemon).await);
    page.note("through containerd-task-manager in front of it, with runc");
    good &= managed::play(page, fixture, &mut daemon).await?;
    daemon.stop().await?;
    Ok(good)
}

/// `ctr run --runtime <our shim> <arguments> <image> <id> <command>`.
fn run<'a>(shim: &'a str, flags: &[&'a str], id: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["run", "--runtime", shim];
    arguments.extend(flags);
    arguments.extend([image::NAME, id]);
    arguments.extend(command);
    arguments
}

async fn one_shot(daemon: &Containerd<'_>, runtime: &str) -> Result<Shown> {
    let start = Instant::now();
    let shim = paths::shim()?.display().to_string();
    let id = daemon.id(&format!("one-{runtime}"));
    let command = ["echo", "hello from inside"];
    let text = daemon.must(&run(&shim, &["--rm"], &id, &command)).await?;
    ensure_eq!(text, "hello from inside\n", "output");
    Ok(Shown { text: format!("says {:?}", text.trim()), start })
}

async fn long_one(daemon: &Containerd<'_>, runtime: &str) -> Result<Shown> {
    let start = Instant::now();
    let shim = paths::shim()?.display().to_string();
    let id = daemon.id(&format!("long-{runtime}"));
    daemon.must(&run(&shim, &["--detach"], &id, &["sleep", "1000"])).await?;
    let (init, serving) = processes(daemon, &id).await?;
    let uid = daemon.must(&["tasks", "exec", "--exec-id", "e1", &id, "id", "-u"]).await?;
    ensure_eq!(uid, "0\n", "output of the exec");
    let failing = ["tasks", "exec", "--exec-id", "e2", &id, "sh", "-c", "exit 9"];
    let failing = daemon.output(&failing).await?;
    ensure_eq!(failing.status.code(), Some(9), "exit code of the exec");
    daemon.must(&["tasks", "kill", "--signal", "SIGKILL", &id]).await?;
    deadline::until("the container's end", deadline::HANG, || !is_alive(init)).await?;
    let said = delete(daemon, &id).await?;
    ensure!(said.contains("exit code 137"), "delete says {said:?}");
    deadline::until("the shim's end", deadline::HANG, || !is_alive(serving)).await?;
    let text = "exec prints 0, exec exits 9, killed: 137, deleted, shim gone".to_owned();
    Ok(Shown { text, start })
}

async fn on_a_terminal(daemon: &Containerd<'_>, runtime: &str) -> Result<Shown> {
    let start = Instant::now();
    let shim = paths::shim()?.display().to_string();
    let id = daemon.id(&format!("tty-{runtime}"));
    let script = "tty; read word; echo \"got $word\"; exit 5";
    let arguments = run(&shim, &["--rm", "--tty"], &id, &["sh", "-c", script]);
    let (code, shown) = OnTerminal::spawn(daemon.ctr(&arguments))?.converse("hello\n").await?;
    ensure!(shown.contains("/dev/pts/") && shown.contains("got hello"), "{shown:?}");
    ensure_eq!(code, Some(5), "exit code");
    Ok(Shown { text: "is /dev/pts/0, hears \"hello\", exits 5".to_owned(), start })
}

/// Our shim and this containerd's own, each with the same container, at the same time.
async fn memory(daemon: &Containerd<'_>) -> Result<Shown> {
    let start = Instant::now();
    let mut lines = Vec::new();
    let mut ids = Vec::new();
    for (name, shim) in [("ours", paths::shim()?), ("Go's", daemon.go_shim())] {
        let id = daemon.id(&format!("mem-{}", name.trim_end_matches("'s").to_lowercase()));
        let shim = shim.display().to_string();
        daemon.must(&run(&shim, &["--detach"], &id, &["sleep", "1000"])).await?;
        let (_, serving) = processes(daemon, &id).await?;
        daemon.must(&["tasks", "exec", "--exec-id", "e", &id, "true"]).await?;
        let usage = Usage::of(serving)?;
        lines.push(format!(
            "{name} {} ({} its own), {}",
            megabytes(usage.pss),
            megabytes(usage.private_dirty),
            threads(usage.threads)
        ));
        ids.push(id);
    }
    for id in ids {
        daemon.must(&["tasks", "kill", "--signal", "SIGKILL", &id]).await?;
        delete(daemon, &id).await?;
    }
    Ok(Shown { text: lines.join("; "), start })
}

fn megabytes(kilobytes: u64) -> String {
    format!("{}.{} MB", kilobytes / 1024, kilobytes % 1024 * 10 / 1024)
}

fn threads(count: usize) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// Init of a container and the shim above it.
async fn processes(daemon: &Containerd<'_>, id: &str) -> Result<(u32, u32)> {
    let list = daemon.must(&["tasks", "ls"]).await?;
    let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
    let init = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let init: u32 = init.ok_or_else(|| Failure::new(format!("no {id} in {list}")))?;
    let stat = std::fs::read_to_string(format!("/proc/{init}/stat")).context("reading init")?;
    let parent = stat.rsplit_once(") ").and_then(|(_, tail)| tail.split(' ').nth(1)?.parse().ok());
    Ok((init, parent.ok_or_else(|| Failure::new("init without parent"))?))
}

/// Deletes a task once it has stopped, and its container; gives what ctr says of it.
async fn delete(daemon: &Containerd<'_>, id: &str) -> Result<String> {
    let stopped = async {
        loop {
            let list = daemon.must(&["tasks", "ls"]).await?;
            if list.lines().any(|line| line.starts_with(id) && line.ends_with("STOPPED")) {
                return Result::Ok(());
            }
        }
    };
    let limited = tokio::time::timeout(deadline::HANG, stopped).await;
    limited.map_err(|_| Failure::new(format!("{id} does not stop")))??;
    let output = daemon.output(&["tasks", "rm", id]).await?;
    daemon.must(&["containers", "rm", id]).await?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}
