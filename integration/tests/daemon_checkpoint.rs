//! Checkpoints through the daemon: out of a task into containerd's content store, and back into a new one. criu itself
//! is not needed: its part is played by the stand-in for the runtime.

use integration::containerd::Containerd;
use integration::daemon::Daemon;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Rule};
use integration::image;
use integration::scenario::{scenario, skip};
use integration::{ensure, ensure_eq, paths};

const REFERENCE: &str = "localhost/checkpoint:test";

#[test]
fn a_checkpoint_is_stored_and_restored_from() -> Result {
    if paths::containerd("2").is_none() {
        return skip("no containerd 2 in this machine's mirror");
    }
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let mut runc = FakeRunc::install(fixture)?;
        let stand_in = runc.path.display().to_string();
        runc.obey(&[
            Rule { skip: true, ..Rule::on("checkpoint") },
            Rule { restores: true, ..Rule::on("restore") },
        ])?;
        let containerd = Containerd::start(fixture, "2").await?;
        containerd.import_image().await?;
        let daemon = Daemon::start(fixture, &containerd).await?;
        let (first, second) = (daemon.id("first"), daemon.id("second"));
        let run = ["run", "--detach", "--null-io", "--runc-binary", &stand_in];
        daemon.must(&[&run[..], &[image::NAME, &first, "sleep", "1000"]].concat()).await?;
        let pid = daemon.status_of(&first).await?.map(|task| task.0).unwrap_or_default();

        daemon.must(&["containers", "checkpoint", "--task", &first, REFERENCE]).await?;
        let taken = runc.calls_of("checkpoint")?;
        ensure_eq!(taken.len(), 1, "calls of checkpoint");
        let written = taken[0].value("--image-path").unwrap_or_default().to_owned();
        ensure!(!written.is_empty(), "no directory was named");
        ensure!(!std::path::Path::new(&written).exists(), "the directory {written} stays");
        let content = daemon.must(&["content", "ls"]).await?;
        ensure!(content.contains("sha256:"), "{content}");
        ensure_eq!(
            daemon.status_of(&first).await?,
            Some((pid, "RUNNING".to_owned())),
            "the first, after its checkpoint"
        );

        // The second gets the spec of the first, its cgroup included.
        daemon.remove(&first).await?;
        daemon.must(&["containers", "restore", "--live", &second, REFERENCE]).await?;
        let restored = runc.calls_of("restore")?;
        ensure_eq!(restored.len(), 1, "calls of restore");
        let read = restored[0].value("--image-path").unwrap_or_default().to_owned();
        ensure!(!read.is_empty() && read != written, "restored from {read:?}");
        daemon.until_status(&second, "RUNNING").await?;
        daemon.remove(&second).await?;
        daemon.must(&["images", "rm", REFERENCE]).await?;
        daemon.stop().await?;
        containerd.stop().await
    })
}
