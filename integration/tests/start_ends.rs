//! A `start` that does not come to its end: no shim, no socket and no address file stay, at whatever point it was.

use std::fs;
use std::io::{PipeReader, Write, pipe};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use integration::bundle::Bundle;
use integration::deadline::{HANG, ended, until, until_some};
use integration::failure::{Failure, Result};
use integration::fixture::{Fixture, socket_paths};
use integration::leak::{Kind, Snapshot};
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim, Started, is_alive};
use integration::spec::Spec;
use integration::{ensure, paths};
use nix::fcntl::{FcntlArg, fcntl};

/// A page, the least that a pipe holds.
const PAGE: usize = 4096;

fn socket(fixture: &Fixture, bundle: &Bundle) -> Result<PathBuf> {
    let paths = socket_paths(&fixture.address(), fixture.namespace(), &bundle.id);
    paths.into_iter().next().ok_or_else(|| Failure::new("no path for a socket"))
}

async fn nothing_stays(fixture: &Fixture, bundle: &Bundle) -> Result {
    let left = [socket(fixture, bundle)?, bundle.dir.join("address"), bundle.dir.join(".address")];
    until("the files of a start to be gone", HANG, || !left.iter().any(|path| path.exists())).await
}

/// A `start` that has forked its shim and cannot answer: its stdout takes nothing, for as long as the reader is there.
fn held(fixture: &Fixture, bundle: &Bundle) -> Result<(Child, PipeReader)> {
    let (reader, mut writer) = pipe()?;
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PAGE.try_into()?))?;
    writer.write_all(&[0; PAGE])?;
    let mut command = Launch::new(fixture, bundle).command("start")?.into_std();
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    Ok((command.spawn()?, reader))
}

async fn forked(starter: u32) -> Result<u32> {
    let path = format!("/proc/{starter}/task/{starter}/children");
    let child = || fs::read_to_string(&path).ok()?.split_whitespace().next()?.parse().ok();
    until_some("the fork of the shim", HANG, child).await
}

#[test]
fn a_shim_whose_starter_is_killed_before_its_answer_ends_by_itself() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim goes on");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let (mut starter, _reader) = held(fixture, &bundle)?;
        let shim = forked(starter.id()).await?;
        ensure!(socket(fixture, &bundle)?.exists(), "no socket");
        ensure!(bundle.dir.join("address").exists(), "no address");
        starter.kill()?;
        starter.wait()?;
        until("the end of the shim", HANG, || !is_alive(shim)).await?;
        nothing_stays(fixture, &bundle).await?;
        // The next one has the place for itself.
        let shim = Launch::new(fixture, &bundle).start().await?;
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn a_shim_of_which_nobody_learns_ends_by_itself() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim goes on");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let (mut starter, reader) = held(fixture, &bundle)?;
        let shim = forked(starter.id()).await?;
        drop(reader);
        ensure!(!starter.wait()?.success(), "an answer that nobody reads is a success");
        until("the end of the shim", HANG, || !is_alive(shim)).await?;
        nothing_stays(fixture, &bundle).await
    })
}

#[test]
fn whoever_comes_to_a_shim_that_never_serves_gets_one_that_does() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim goes on");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let pod = fixture.id("pod");
        let spec = Spec::new(&["true"]).annotation("io.containerd.runc.v2.group", &pod);
        let [first, second] = [fixture.bundle("pod", &spec)?, fixture.bundle("b", &spec)?];
        let (mut starter, _reader) = held(fixture, &first)?;
        let shim = forked(starter.id()).await?;
        // It has the socket, and waits for an answer there.
        let launch = Launch::new(fixture, &second);
        let join = launch.start();
        let kill = async {
            let connected = || {
                let listed = fs::read_to_string("/proc/net/unix").unwrap_or_default();
                let socket = socket(fixture, &first).unwrap_or_default();
                let name = socket.display().to_string();
                listed.lines().filter(|line| line.ends_with(&name)).count() > 1
            };
            until("the second to come", HANG, connected).await?;
            starter.kill()?;
            starter.wait()?;
            Ok(())
        };
        let (joined, killed): (_, Result) = tokio::join!(join, kill);
        killed?;
        until("the end of the first shim", HANG, || !is_alive(shim)).await?;
        let shim = joined?;
        shim.shutdown(&second.id).await?;
        shim.gone().await
    })
}

#[test]
fn a_start_that_cannot_leave_its_address_leaves_nothing() -> Result {
    if paths::is_go_shim() {
        return skip("not all of Go's shims write one");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let address = bundle.dir.join("address");
        fs::create_dir(&address)?;
        let output = ended(Launch::new(fixture, &bundle).command("start")?).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains("address"), "{}: {said}", output.status);
        fs::remove_dir(&address)?;
        nothing_stays(fixture, &bundle).await
    })
}

/// Processes and mounts of a fixture: what a start may leave besides files that the next one takes for its own.
fn is_running(fixture: &Fixture) -> bool {
    Snapshot::take(&fixture.scope()).items().any(|item| item.kind == Kind::Process)
}

#[test]
fn starter_that_is_killed_at_any_time_leaves_what_the_next_one_can_begin_with() -> Result {
    const ROUNDS: u64 = 60;
    if paths::is_go_shim() {
        return skip("Go's shim goes on");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let mut command = Launch::new(fixture, &bundle).command("start")?;
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        for round in 0..ROUNDS {
            let mut starter = command.spawn()?;
            tokio::time::sleep(Duration::from_micros(100 * round)).await;
            starter.start_kill()?;
            let output = starter.wait_with_output().await?;
            let answered = Started::read(&output.stdout);
            if output.status.success() {
                let shim = Shim::connect(fixture, answered?).await?;
                shim.shutdown(&bundle.id).await?;
            } else if let Ok(started) = answered
                && let Ok(shim) = Shim::connect(fixture, started).await
            {
                // Killed behind its last word it has left a shim, of which the answer tells; otherwise that is ending.
                let _ = shim.shutdown(&bundle.id).await;
            }
            let what = format!("the end of what round {round} left");
            until(&what, HANG, || !is_running(fixture)).await?;
        }
        let shim = Launch::new(fixture, &bundle).start().await?;
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}
