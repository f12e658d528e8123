//! Clients of the daemon that misbehave, leave, or are many: the others notice nothing, and nothing stays.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use integration::daemon::{Daemon, in_front_of};
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Rule};
use integration::image;
use integration::{deadline, ensure, ensure_eq};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

/// Whether a create ended because of its caller.
fn gone_away(daemon: &Daemon<'_>, id: &str) -> bool {
    let log = daemon.log();
    log.lines().any(|line| line.contains(id) && line.contains("the caller has given up"))
}

async fn dies(mut child: Child) -> Result {
    child.kill().await?;
    Ok(())
}

#[test]
fn what_is_no_grpc_is_dropped_and_others_are_served() -> Result {
    in_front_of("2", async |_, _, daemon| {
        daemon.must(&["tasks", "ls"]).await?;
        let before = daemon.descriptors();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let huge = [0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1];
        let noise: Vec<u8> =
            (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let first = [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &noise, preface];
        let said = first.into_iter().map(<[u8]>::to_vec).chain([
            [&preface[..], &noise].concat(),
            [&preface[..], &settings, &huge, &noise].concat(),
            Vec::new(),
        ]);
        let mut held = Vec::new();
        for bytes in said.collect::<Vec<_>>().iter().cycle().take(300) {
            let mut stream = UnixStream::connect(daemon.address())?;
            // The daemon may have hung up already.
            let _ = stream.write_all(bytes);
            held.push(stream);
        }
        daemon.must(&["tasks", "ls"]).await?;
        daemon.must(&["images", "ls"]).await?;
        drop(held);
        daemon.settles_to(before).await
    })
}

#[test]
fn a_client_that_leaves_during_a_create_leaves_nothing_behind() -> Result {
    in_front_of("2", async |fixture, _, daemon| {
        let mut runc = FakeRunc::install(fixture)?;
        let stand_in = runc.path.display().to_string();
        let before = daemon.descriptors();
        for round in 0..4 {
            let id = daemon.id(&format!("left{round}"));
            let mut slow = Rule::on("create").of(&id);
            slow.delay_ms = 500;
            runc.obey(&[slow])?;
            let run = ["run", "--detach", "--null-io", "--runc-binary", &stand_in];
            let run = [&run[..], &[image::NAME, &id, "sleep", "1000"]].concat();
            let client = daemon.ctr(&run).stderr(Stdio::null()).spawn()?;
            let bundle = daemon.bundles().join(&id);
            deadline::until("the bundle", deadline::HANG, || bundle.exists()).await?;
            tokio::time::sleep(Duration::from_millis(100 * round)).await;
            dies(client).await?;
            deadline::until("the bundle's end", deadline::HANG, || !bundle.exists()).await?;
            ensure!(daemon.status_of(&id).await?.is_none(), "a task is left");
            ensure!(gone_away(daemon, &id), "the create failed by itself: {}", daemon.log_tail());
            // The record and the snapshot are the client's own.
            daemon.must(&["containers", "rm", &id]).await?;
        }
        daemon.settles_to(before).await
    })
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_else() -> Result {
    in_front_of("2", async |fixture, _, daemon| {
        let blob = fixture.file("blob");
        fs::write(&blob, vec![7; 64 << 20])?;
        let ingest =
            daemon.ctr(&["content", "ingest", "blob"]).stdin(fs::File::open(&blob)?).output();
        ensure!(ingest.await?.status.success(), "no blob");
        let list = daemon.must(&["content", "ls"]).await?;
        let line = list.lines().find(|line| line.contains("67.11"));
        let digest = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
        // Else it is garbage, once a container has gone.
        daemon.must(&["content", "label", digest, "containerd.io/gc.root=test"]).await?;
        let before = daemon.descriptors();
        let mut readers = Vec::new();
        for _ in 0..8 {
            // Its pipe is full after 64 kB, and nobody reads it.
            readers.push(daemon.ctr(&["content", "get", digest]).stdout(Stdio::piped()).spawn()?);
            let events = daemon.ctr(&["events"]).stdout(Stdio::piped()).spawn()?;
            if let Some(pid) = events.id() {
                kill(Pid::from_raw(pid.try_into()?), Signal::SIGSTOP)?;
            }
            readers.push(events);
        }
        let id = daemon.id("meanwhile");
        for _ in 0..5 {
            let text = daemon.must(&["run", "--rm", image::NAME, &id, "echo", "served"]).await?;
            ensure_eq!(text, "served\n", "output");
        }
        let fetched = daemon.output(&["content", "get", digest]).await?;
        ensure_eq!(fetched.stdout.len(), 64 << 20, "bytes for one that reads");
        let status =
            fs::read_to_string(format!("/proc/{}/status", daemon.pid().unwrap_or_default()))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kb: u64 = rss.trim().trim_end_matches(" kB").parse()?;
        // Back-pressure: what is not read is not fetched, but for the windows of each connection.
        ensure!(kb < 160 << 10, "the daemon holds {kb} kB");
        for reader in readers {
            dies(reader).await?;
        }
        daemon.settles_to(before).await?;
        daemon.must(&["content", "rm", digest]).await.map(drop)
    })
}
