//! The other way in: `ctr` at the task manager's socket, with a containerd behind it.

use std::process::Stdio;
use std::time::Instant;

use integration::containerd::Containerd;
use integration::daemon::{Daemon, Events};
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::page::{Page, Shown};
use integration::shim::is_alive;
use integration::{deadline, ensure, ensure_eq, image, paths};
use nix::sys::signal::Signal;
use tokio::process::Command;

/// Plays all scenes through a manager in front of this containerd; true if all went well.
pub(crate) async fn play(
    page: &mut Page,
    fixture: &Fixture,
    containerd: &mut Containerd<'_>,
) -> Result<bool> {
    let start = Instant::now();
    fixture.offer("runc", &paths::runc()?)?;
    fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
    let mut manager = Daemon::start(fixture, containerd).await?;
    page.good(
        "manager",
        "up; tasks are its own, all else goes to containerd",
        Some(start.elapsed()),
    );
    let mut good = page.tell("image", import(&manager).await);
    good &= page.tell("one-shot", one_shot(&manager).await);
    good &= page.tell("long one", long_one(&manager).await);
    match unable_to_dump().await {
        None => good &= page.tell("checkpoint", checkpoint(&manager).await),
        Some(why) => page.skipped("checkpoint", why),
    }
    good &= page.tell("restarts", restarts(&mut manager, containerd).await);
    manager.stop().await?;
    Ok(good)
}

async fn import(manager: &Daemon<'_>) -> Result<Shown> {
    let start = Instant::now();
    manager.import_image().await?;
    let text = "imported again: leases, content, diffs and snapshots pass through".to_owned();
    Ok(Shown { text, start })
}

async fn one_shot(manager: &Daemon<'_>) -> Result<Shown> {
    let start = Instant::now();
    let id = manager.id("m-one");
    let command = ["echo", "hello from inside"];
    let text = manager.must(&[&["run", "--rm", image::NAME, &id], &command[..]].concat()).await?;
    ensure_eq!(text, "hello from inside\n", "output");
    Ok(Shown { text: format!("says {:?}", text.trim()), start })
}

/// A whole life, and what `ctr events` has seen of it.
async fn long_one(manager: &Daemon<'_>) -> Result<Shown> {
    let start = Instant::now();
    let events = Events::follow(manager).await?;
    let id = manager.id("m-long");
    let init = manager.run_detached(&id).await?;
    let uid = manager.must(&["tasks", "exec", "--exec-id", "e1", &id, "id", "-u"]).await?;
    ensure_eq!(uid, "0\n", "output of the exec");
    let listed = manager.must(&["tasks", "ps", &id]).await?;
    ensure!(listed.contains(&init.to_string()), "no init in {listed}");
    let metrics = manager.must(&["tasks", "metrics", &id]).await?;
    ensure!(metrics.contains(&id), "no metrics in {metrics}");
    manager.must(&["tasks", "pause", &id]).await?;
    manager.until_status(&id, "PAUSED").await?;
    manager.must(&["tasks", "resume", &id]).await?;
    manager.must(&["tasks", "kill", "--signal", "SIGKILL", &id]).await?;
    manager.until_status(&id, "STOPPED").await?;
    let removed = manager.output(&["tasks", "rm", &id]).await?;
    let said = String::from_utf8_lossy(&removed.stderr);
    ensure!(said.contains("exit code 137"), "delete says {said:?}");
    manager.must(&["containers", "rm", &id]).await?;
    events.until_deleted(&id).await?;
    let told = events.topics_of(&id);
    let expected = [
        "create",
        "start",
        "exec-added",
        "exec-started",
        "exit",
        "paused",
        "resumed",
        "exit",
        "delete",
    ];
    ensure_eq!(told, expected.map(|topic| format!("/tasks/{topic}")), "events");
    events.stop().await?;
    let text = format!(
        "ls, exec, ps, metrics, pause, resume, kill: 137, rm; {} events, in order",
        told.len()
    );
    Ok(Shown { text, start })
}

/// Why no checkpoint can be taken on this machine, if so.
async fn unable_to_dump() -> Option<&'static str> {
    let Some(criu) = paths::criu() else { return Some("no criu on this machine") };
    let mut check = Command::new(criu);
    check.arg("check").stdin(Stdio::null()).kill_on_drop(true);
    let works = deadline::ended(check).await.is_ok_and(|output| output.status.success());
    (!works).then_some("criu does not work with this kernel")
}

/// Dumped with criu, removed, and brought back.
async fn checkpoint(manager: &Daemon<'_>) -> Result<Shown> {
    const REFERENCE: &str = "localhost/checkpoint:demo";
    let start = Instant::now();
    let (first, second) = (manager.id("m-dumped"), manager.id("m-restored"));
    manager.run_detached(&first).await?;
    manager.must(&["containers", "checkpoint", "--task", &first, REFERENCE]).await?;
    manager.remove(&first).await?;
    manager.must(&["containers", "restore", "--live", &second, REFERENCE]).await?;
    manager.until_status(&second, "RUNNING").await?;
    manager.remove(&second).await?;
    manager.must(&["images", "rm", REFERENCE]).await?;
    Ok(Shown { text: "dumped with criu, removed, restored".to_owned(), start })
}

/// A container that sees the manager killed, and then containerd.
async fn restarts(manager: &mut Daemon<'_>, containerd: &mut Containerd<'_>) -> Result<Shown> {
    let start = Instant::now();
    let id = manager.id("m-stays");
    let init = manager.run_detached(&id).await?;
    let running = Some((init, "RUNNING".to_owned()));
    manager.signal(Signal::SIGKILL).await?;
    ensure!(is_alive(init), "the container went with the manager");
    manager.start_again().await?;
    ensure_eq!(manager.status_of(&id).await?, running, "task after the manager was killed");
    containerd.end(Signal::SIGKILL).await?;
    ensure_eq!(manager.status_of(&id).await?, running, "task without containerd");
    containerd.start_again().await?;
    manager.must(&["tasks", "exec", "--exec-id", "e", &id, "true"]).await?;
    manager.remove(&id).await?;
    deadline::until("the container's end", deadline::HANG, || !is_alive(init)).await?;
    let text = "manager killed and back, containerd killed and back: same pid, exec works";
    Ok(Shown { text: text.to_owned(), start })
}
