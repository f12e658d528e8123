//! `doctor` finds what shims and managers leave behind, and removes what is dead and nothing else.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use integration::container::Container;
use integration::containerd::Containerd;
use integration::daemon::Daemon;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::image;
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim, is_alive};
use integration::spec::Spec;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn text(path: &Path) -> String {
    path.display().to_string()
}

async fn killed(pids: &[u32]) -> Result {
    for pid in pids {
        kill(Pid::from_raw((*pid).try_into()?), Signal::SIGKILL)?;
        deadline::until("a killed process's end", deadline::HANG, || !is_alive(*pid)).await?;
    }
    Ok(())
}

/// One of each kind, below the fixture's state directory, which no manager looks at.
struct Remains {
    /// A shim that was started and never asked to create.
    leaked: Shim,
    /// A shim killed together with its container.
    dead: Container,
    /// A shim killed alone.
    orphan: Container,
    /// A mount in a bundle that is half removed.
    mounted: PathBuf,
    /// The directory of sockets: the usual one is that of all tests.
    sockets: PathBuf,
    _listener: UnixListener,
}

impl Remains {
    async fn make(fixture: &Fixture) -> Result<Self> {
        let bundle = fixture.bundle("leaked", &Spec::new(&["true"]))?;
        let leaked = Launch::new(fixture, &bundle).start().await?;
        let dead = Container::run(fixture, "dead", &Spec::new(&["sleep", "1000"])).await?;
        let orphan = Container::run(fixture, "orphan", &Spec::new(&["sleep", "1000"])).await?;
        killed(&[dead.shim.pid, dead.pid, orphan.shim.pid]).await?;
        let mounted = fixture.bundles().join(".gone/rootfs");
        fs::create_dir_all(&mounted)?;
        mount(Some("tmpfs"), &mounted, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        let sockets = fixture.file("s");
        drop(UnixListener::bind(sockets.join("dead"))?);
        let _listener = UnixListener::bind(sockets.join("live"))?;
        Ok(Self { leaked, dead, orphan, mounted, sockets, _listener })
    }

    /// All that was dead is gone, and nothing else.
    async fn are_removed(&self, outcome: &Value) -> Result {
        self.leaked.gone().await?;
        ensure!(!self.dead.bundle.dir.exists(), "the dead bundle stays: {outcome}");
        ensure!(!self.sockets.join("dead").exists(), "the dead socket stays: {outcome}");
        ensure!(self.sockets.join("live").exists(), "a live socket is gone: {outcome}");
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&text(&self.mounted)), "it is still mounted: {outcome}");
        ensure!(is_alive(self.orphan.pid), "the orphan was killed");
        Ok(())
    }
}

/// What doctor is asked: without its minute of grace, on three state directories.
struct Doctor<'a> {
    daemon: &'a Daemon<'a>,
    arguments: Vec<String>,
}

impl<'a> Doctor<'a> {
    fn new(
        fixture: &Fixture,
        containerd: &Containerd<'_>,
        daemon: &'a Daemon<'a>,
        sockets: &Path,
    ) -> Self {
        let above = |bundles: PathBuf| text(bundles.parent().unwrap_or(&bundles));
        let mut arguments: Vec<String> =
            ["doctor", "--json", "--everything"].map(str::to_owned).to_vec();
        for (flag, value) in [
            ("--containerd", text(&containerd.address())),
            ("--state", text(&daemon.state())),
            ("--state", above(containerd.bundles())),
            ("--state", above(fixture.bundles())),
            ("--sockets", text(sockets)),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        Self { daemon, arguments }
    }

    async fn finds(&self, more: &[&str]) -> Result<Value> {
        let all: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.daemon.tool_json(&[&all, more].concat()).await
    }
}

/// Kinds, and whether they can be fixed.
fn kinds(findings: &Value) -> Vec<String> {
    let kind = |finding: &Value| {
        let fixable = if finding["fixable"] == true { "" } else { ", left" };
        format!("{}{fixable}", finding["kind"].as_str().unwrap_or_default())
    };
    findings.as_array().into_iter().flatten().map(kind).collect()
}

#[test]
fn each_kind_of_remains_is_found_and_nothing_alive_is_touched() -> Result {
    if paths::containerd("2").is_none() {
        return skip("no containerd 2 in this machine's mirror");
    }
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let _sink = fixture.fake_containerd()?;
        let containerd = Containerd::start(fixture, "2").await?;
        containerd.import_image().await?;
        let daemon = Daemon::start(fixture, &containerd).await?;
        // Live containers of two managers.
        let (ours, stock) = (daemon.id("ours"), containerd.id("stock"));
        let init = daemon.run_detached(&ours).await?;
        let run = ["run", "--detach", "--null-io", image::NAME, &stock, "sleep", "1000"];
        containerd.must(&run).await?;

        find_and_fix(fixture, &containerd, &daemon).await?;

        ensure!(is_alive(init), "a live container was killed");
        daemon.must(&["tasks", "exec", "--exec-id", "e", &ours, "true"]).await?;
        containerd.must(&["tasks", "exec", "--exec-id", "e", &stock, "true"]).await?;
        containerd.output(&["tasks", "rm", "--force", &stock]).await?;
        containerd.must(&["containers", "rm", &stock]).await?;
        daemon.remove(&ours).await?;
        daemon.stop().await?;
        containerd.stop().await
    })
}

async fn find_and_fix(
    fixture: &Fixture,
    containerd: &Containerd<'_>,
    daemon: &Daemon<'_>,
) -> Result {
    let remains = Remains::make(fixture).await?;
    let doctor = Doctor::new(fixture, containerd, daemon, &remains.sockets);
    let expected = ["leaked-shim", "orphan, left", "dead-bundle", "stray-mount", "dead-socket"];
    for _ in 0..2 {
        // Looking changes nothing.
        let found = doctor.finds(&[]).await?;
        ensure_eq!(kinds(&found), expected, "findings of {found}");
    }
    ensure!(remains.leaked.is_alive(), "looking has ended a shim");
    let fixed = doctor.finds(&["--fix"]).await?;
    remains.are_removed(&fixed).await?;
    // Known to be stale once its bundle had gone.
    ensure!(kinds(&fixed).contains(&"stale-state".to_owned()), "runtime state: {fixed}");
    for again in [&["--fix"][..], &[], &["--fix"]] {
        ensure_eq!(kinds(&doctor.finds(again).await?), ["orphan, left"], "what is left");
    }

    killed(&[remains.orphan.pid]).await?;
    doctor.finds(&["--fix"]).await?;
    ensure_eq!(kinds(&doctor.finds(&[]).await?), Vec::<String>::new(), "what is left");
    fs::remove_file(remains.sockets.join("live"))?;
    for killed in [&remains.dead, &remains.orphan] {
        fs::remove_file(killed.shim.started.socket())?;
    }
    Ok(())
}
