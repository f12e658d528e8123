//! The task manager as a daemon: `ctr` of each containerd series through its socket, in front of the containerd of each
//! series, with our shim and with each Go shim. Nothing about the clients or containerd is changed.

use integration::containerd::Containerd;
use integration::ctr::Ctr;
use integration::daemon::{Daemon, Events, Manner};
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::image;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::terminal::OnTerminal;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Who calls, who is behind, and what the manager starts; by series of containerd.
struct Company {
    ctr: &'static str,
    containerd: &'static str,
    /// Of the Go shim; none: the shim under test.
    go_shim: Option<&'static str>,
}

fn with_daemon<F>(company: &Company, test: F) -> Result
where
    F: AsyncFnOnce(&Fixture, &Daemon<'_>) -> Result,
{
    let series = [Some(company.ctr), Some(company.containerd), company.go_shim];
    for series in series.into_iter().flatten() {
        if paths::containerd(series).is_none() {
            return skip(&format!("no containerd {series} in this machine's mirror"));
        }
    }
    scenario(async |fixture| {
        let go_shim = company.go_shim.and_then(paths::containerd);
        let shim = match go_shim {
            Some(dir) => dir.join("containerd-shim-runc-v2"),
            None => paths::shim()?,
        };
        fixture.offer("containerd-shim-runc-v2", &shim)?;
        let containerd = Containerd::start(fixture, company.containerd).await?;
        let manner = Manner { clients: paths::containerd(company.ctr), ..Manner::default() };
        let daemon = Daemon::start_as(fixture, &containerd, manner).await?;
        // A newer ctr imports by a service that an older containerd has not.
        let of_its_own = Ctr::new(fixture, containerd.bin(), &daemon.address());
        of_its_own.must(&["images", "import", &image::archive(fixture)?]).await?;
        test(fixture, &daemon).await?;
        daemon.stop().await?;
        containerd.stop().await
    })
}

async fn life(_: &Fixture, daemon: &Daemon<'_>) -> Result {
    let events = Events::follow(daemon).await?;
    let id = daemon.id("life");
    let pid = daemon.run_detached(&id).await?;
    ensure!(is_alive(pid), "init {pid} is not there");
    let text = daemon.must(&["tasks", "exec", "--exec-id", "e1", &id, "echo", "exec says"]).await?;
    ensure_eq!(text, "exec says\n", "output of the exec");
    let code =
        daemon.output(&["tasks", "exec", "--exec-id", "e2", &id, "sh", "-c", "exit 9"]).await?;
    ensure_eq!(code.status.code(), Some(9), "exit code of the exec");
    let text = daemon.must(&["tasks", "ps", &id]).await?;
    ensure!(text.contains(&pid.to_string()), "no init in {text}");
    let text = daemon.must(&["tasks", "metrics", &id]).await?;
    ensure!(text.contains(&id), "no metrics in {text}");
    daemon.must(&["tasks", "pause", &id]).await?;
    daemon.until_status(&id, "PAUSED").await?;
    daemon.must(&["tasks", "resume", &id]).await?;
    daemon.until_status(&id, "RUNNING").await?;
    daemon.must(&["tasks", "kill", "--signal", "9", &id]).await?;
    daemon.until_status(&id, "STOPPED").await?;
    let removed = daemon.output(&["tasks", "rm", &id]).await?;
    let said = String::from_utf8_lossy(&removed.stderr);
    ensure!(removed.status.success() && said.contains("exit code 137"), "{said}");
    daemon.must(&["containers", "rm", &id]).await?;
    events.until_deleted(&id).await?;
    let expected = [
        "create",
        "start",
        "exec-added",
        "exec-started",
        "exit",
        "exec-added",
        "exec-started",
        "exit",
        "paused",
        "resumed",
        "exit",
        "delete",
    ];
    let expected: Vec<String> = expected.iter().map(|name| format!("/tasks/{name}")).collect();
    ensure_eq!(events.topics_of(&id), expected, "events, once each and in order");
    events.stop().await
}

async fn one_shots(_: &Fixture, daemon: &Daemon<'_>) -> Result {
    let id = daemon.id("one");
    let text = daemon.must(&["run", "--rm", image::NAME, &id, "echo", "hello from inside"]).await?;
    ensure_eq!(text, "hello from inside\n", "output");
    let id = daemon.id("code");
    let output = daemon.output(&["run", "--rm", image::NAME, &id, "sh", "-c", "exit 7"]).await?;
    ensure_eq!(output.status.code(), Some(7), "exit code");
    let id = daemon.id("tty");
    let script = "tty; read word; echo got $word; exit 5";
    let ctr = daemon.ctr(&["run", "--rm", "--tty", image::NAME, &id, "sh", "-c", script]);
    let (code, shown) = OnTerminal::spawn(ctr)?.converse("hello\n").await?;
    ensure!(shown.contains("/dev/pts/") && shown.contains("got hello"), "{shown:?}");
    ensure_eq!(code, Some(5), "exit code");
    let id = daemon.id("nope");
    let said = daemon.refused(&["run", "--rm", image::NAME, &id, "/no/such/program"]).await?;
    ensure!(said.contains("/no/such/program") && said.contains("no such file"), "{said}");
    Ok(())
}

/// What clients read from failures: `ctr` finds these by code and shows the text.
async fn refusals(fixture: &Fixture, daemon: &Daemon<'_>) -> Result {
    let namespace = fixture.namespace();
    let said = daemon.refused(&["tasks", "rm", "ghost"]).await?;
    let wanted = format!("container \"ghost\" in namespace \"{namespace}\": not found");
    ensure!(said.contains(&wanted), "{said}");
    let id = daemon.id("idle");
    daemon.must(&["containers", "create", image::NAME, &id, "sleep", "1000"]).await?;
    let said = daemon.refused(&["tasks", "rm", &id]).await?;
    ensure!(said.contains(&format!("task {id} not found")), "{said}");
    // Needs that the task is not found.
    daemon.must(&["containers", "rm", &id]).await?;
    let id = daemon.id("twice");
    daemon.run_detached(&id).await?;
    let said = daemon.refused(&["tasks", "start", "--detach", "--null-io", &id]).await?;
    ensure!(said.contains("already exists"), "{said}");
    let said = daemon.refused(&["tasks", "rm", &id]).await?;
    ensure!(said.contains("must be stopped before deletion"), "{said}");
    daemon.remove(&id).await
}

/// A killed shim: its container goes with it, and that is told once.
async fn killed_shim(_: &Fixture, daemon: &Daemon<'_>) -> Result {
    let events = Events::follow(daemon).await?;
    let id = daemon.id("orphan");
    let pid = daemon.run_detached(&id).await?;
    let state = daemon.state().display().to_string();
    let listed = daemon.tool_json(&["ls", "--json", "--state", &state]).await?;
    let shim = listed[0]["shim_pid"].as_i64().unwrap_or_default();
    ensure!(shim > 1, "no shim in {listed}");
    kill(Pid::from_raw(shim.try_into()?), Signal::SIGKILL)?;
    deadline::until("the orphaned init's end", deadline::HANG, || !is_alive(pid)).await?;
    events.until_deleted(&id).await?;
    ensure_eq!(
        events.topics_of(&id),
        ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"],
        "events"
    );
    let exit = events.lines_with("/tasks/exit").join("\n");
    ensure!(exit.contains(&format!("\"pid\":{pid}")), "the exit names no pid: {exit}");
    let bundle = daemon.bundles().join(&id);
    deadline::until("the bundle's end", deadline::HANG, || !bundle.exists()).await?;
    ensure!(daemon.status_of(&id).await?.is_none(), "the task stays in the list");
    events.stop().await?;
    daemon.must(&["containers", "rm", &id]).await.map(drop)
}

/// What the daemon does not serve is containerd's, streams both ways included.
async fn passed_through(fixture: &Fixture, daemon: &Daemon<'_>) -> Result {
    // A blob larger than one message, sent and fetched back.
    let blob = fixture.file("blob");
    let bytes: Vec<u8> =
        (0..40_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&blob, &bytes)?;
    let mut ingest = daemon.ctr(&["content", "ingest", "a-reference"]);
    let ingested = ingest.stdin(std::fs::File::open(&blob)?).output().await?;
    ensure!(ingested.status.success(), "{}", String::from_utf8_lossy(&ingested.stderr));
    // Digests alone: the rest of a line tells how old a blob is.
    let through = daemon.must(&["content", "ls", "-q"]).await?;
    let behind = daemon.behind().output(&["content", "ls", "-q"]).await?;
    ensure_eq!(through, String::from_utf8_lossy(&behind.stdout), "content of both sockets");
    let size = format!("{}MB", bytes.len() / 1_000_000);
    let listed = daemon.must(&["content", "ls"]).await?;
    let line = listed.lines().find(|line| line.contains(&size) || line.contains("41.94"));
    let digest =
        line.and_then(|line| line.split_whitespace().next()).unwrap_or_default().to_owned();
    let fetched = daemon.output(&["content", "get", &digest]).await?;
    ensure!(fetched.stdout == bytes, "the blob came back changed: {} bytes", fetched.stdout.len());
    daemon.must(&["content", "rm", &digest]).await?;
    // Status and text of a refusal are containerd's own.
    let missing = ["snapshots", "info", "no-such-snapshot"];
    let through = daemon.refused(&missing).await?;
    let behind = daemon.behind().output(&missing).await?;
    ensure!(through.contains("not found"), "{through}");
    ensure_eq!(through, String::from_utf8_lossy(&behind.stderr), "refusal");
    let version = daemon.must(&["version"]).await?;
    ensure!(version.contains("Server"), "{version}");
    Ok(())
}

/// What a client is told of a runtime is true of the shim that the manager would start: not the one containerd finds.
#[test]
fn runtimes_are_described_as_the_manager_has_them() -> Result {
    let series = "2";
    let Some(bin) = paths::containerd(series) else {
        return skip("no containerd 2 in this machine's mirror");
    };
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &bin.join("containerd-shim-runc-v2"))?;
        let containerd = Containerd::start(fixture, series).await?;
        let first = fixture.file("first");
        std::fs::create_dir_all(&first)?;
        std::os::unix::fs::symlink(paths::shim()?, first.join("containerd-shim-runc-v2"))?;
        let path = format!("{}:{}", first.display(), fixture.path());
        let environment = vec![("PATH".to_owned(), path)];
        let manner = Manner { environment, ..Manner::default() };
        let daemon = Daemon::start_as(fixture, &containerd, manner).await?;
        let ask = ["plugins", "inspect-runtime"];
        let (ours, theirs) = (daemon.must(&ask).await?, daemon.behind().must(&ask).await?);
        ensure!(ours.contains("io.containerd.runc.v2") && ours.contains("Features"), "{ours}");
        ensure!(ours != theirs, "both say {ours}");
        let said = daemon.refused(&["plugins", "inspect-runtime", "--runtime", "io.no.such.v1"]);
        let said = said.await?;
        ensure!(said.contains("io.no.such.v1"), "{said}");
        // Plugins in general are containerd's to tell of.
        let list = ["plugins", "ls"];
        ensure_eq!(daemon.must(&list).await?, daemon.behind().must(&list).await?, "plugins");
        daemon.stop().await?;
        containerd.stop().await
    })
}

macro_rules! among {
    ($($body:ident: $name:ident, ctr $ctr:literal, containerd $containerd:literal, $shim:expr;)+) => {
        $(
            #[test]
            fn $name() -> Result {
                with_daemon(&Company { ctr: $ctr, containerd: $containerd, go_shim: $shim }, $body)
            }
        )+
    };
}

const OURS: Option<&str> = None;

const fn go(series: &'static str) -> Option<&'static str> {
    Some(series)
}

// Every ctr meets every containerd, every containerd every shim, and every ctr every shim.
among! {
    life: whole_life_on_1_6_with_our_shim, ctr "1.6", containerd "1.6", OURS;
    life: whole_life_on_1_7_with_our_shim, ctr "1.7", containerd "1.7", OURS;
    life: whole_life_on_2_with_our_shim, ctr "2", containerd "2", OURS;
    life: whole_life_on_1_6_with_its_go_shim, ctr "1.7", containerd "1.6", go("1.6");
    life: whole_life_on_1_7_with_the_go_shim_of_1_6, ctr "2", containerd "1.7", go("1.6");
    life: whole_life_on_2_with_the_go_shim_of_1_6, ctr "1.6", containerd "2", go("1.6");
    life: whole_life_on_1_6_with_the_go_shim_of_1_7, ctr "2", containerd "1.6", go("1.7");
    life: whole_life_on_1_7_with_its_go_shim, ctr "1.6", containerd "1.7", go("1.7");
    life: whole_life_on_2_with_the_go_shim_of_1_7, ctr "1.7", containerd "2", go("1.7");
    life: whole_life_on_1_6_with_the_go_shim_of_2, ctr "1.6", containerd "1.6", go("2");
    life: whole_life_on_1_7_with_the_go_shim_of_2, ctr "1.7", containerd "1.7", go("2");
    life: whole_life_on_2_with_its_go_shim, ctr "2", containerd "2", go("2");
}

among! {
    one_shots: one_shots_on_1_6_with_our_shim, ctr "1.6", containerd "1.6", OURS;
    one_shots: one_shots_on_1_7_with_our_shim, ctr "1.7", containerd "1.7", OURS;
    one_shots: one_shots_on_2_with_our_shim, ctr "2", containerd "2", OURS;
    one_shots: one_shots_on_1_6_with_its_go_shim, ctr "1.6", containerd "1.6", go("1.6");
    one_shots: one_shots_on_1_7_with_its_go_shim, ctr "1.7", containerd "1.7", go("1.7");
    one_shots: one_shots_on_2_with_its_go_shim, ctr "2", containerd "2", go("2");
    refusals: refusals_read_as_containerds_on_1_6, ctr "1.6", containerd "1.6", OURS;
    refusals: refusals_read_as_containerds_on_1_7, ctr "1.7", containerd "1.7", OURS;
    refusals: refusals_read_as_containerds_on_2, ctr "2", containerd "2", OURS;
    killed_shim: container_of_our_killed_shim_ends_and_is_told_once, ctr "2", containerd "2", OURS;
    killed_shim: container_of_a_killed_go_shim_ends_and_is_told_once, ctr "2", containerd "2", go("2");
    passed_through: all_other_calls_pass_through_to_1_6, ctr "1.6", containerd "1.6", OURS;
    passed_through: all_other_calls_pass_through_to_1_7, ctr "1.7", containerd "1.7", OURS;
    passed_through: all_other_calls_pass_through_to_2, ctr "2", containerd "2", OURS;
}
