//! Containers as people run them: `ctr` and containerd 1.6, 1.7 and 2, with runc and with crun, through our shim.

use std::time::Duration;

use integration::containerd::Containerd;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::image;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::terminal::OnTerminal;
use integration::{deadline, ensure, ensure_eq, hybrid, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs a test against a private daemon whose default shim is the one under test, and whose `runc` is the named runtime.
fn with_containerd<F>(series: &str, runtime: &str, test: F) -> Result
where
    F: AsyncFnOnce(&Fixture, &mut Containerd<'_>) -> Result,
{
    if paths::containerd(series).is_none() {
        return skip(&format!("no containerd {series} in this machine's mirror"));
    }
    hybrid::free_unified_hierarchy()?;
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let runtime = if runtime == "crun" { paths::crun()? } else { paths::runc()? };
        fixture.offer("runc", &runtime)?;
        let mut daemon = Containerd::start(fixture, series).await?;
        daemon.import_image().await?;
        test(fixture, &mut daemon).await?;
        daemon.stop().await
    })
}

async fn status_of(daemon: &Containerd<'_>, id: &str) -> Result<Option<(u32, String)>> {
    let list = daemon.must(&["tasks", "ls"]).await?;
    let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
    Ok(line.and_then(|line| {
        let mut fields = line.split_whitespace().skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.to_owned()))
    }))
}

/// The process of a container's shim: what listens at its socket answers for it, but ctr shows only init's; so by parent.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

async fn one_shot(_: &Fixture, daemon: &mut Containerd<'_>) -> Result {
    let id = daemon.id("one");
    let text = daemon.must(&["run", "--rm", image::NAME, &id, "echo", "hello from inside"]).await?;
    ensure_eq!(text, "hello from inside\n", "output");
    let id = daemon.id("code");
    let output = daemon.output(&["run", "--rm", image::NAME, &id, "sh", "-c", "exit 7"]).await?;
    ensure_eq!(output.status.code(), Some(7), "exit code");
    Ok(())
}

async fn long_one(_: &Fixture, daemon: &mut Containerd<'_>) -> Result {
    let id = daemon.id("long");
    daemon.must(&["run", "--detach", image::NAME, &id, "sleep", "1000"]).await?;
    let Some((pid, status)) = status_of(daemon, &id).await? else {
        return Err(integration::failure::Failure::new("no task"));
    };
    ensure_eq!(status, "RUNNING", "status");
    let shim = parent_of(pid).unwrap_or_default();
    let text = daemon.must(&["tasks", "exec", "--exec-id", "e1", &id, "echo", "exec says"]).await?;
    ensure_eq!(text, "exec says\n", "output of the exec");
    let code =
        daemon.output(&["tasks", "exec", "--exec-id", "e2", &id, "sh", "-c", "exit 9"]).await?;
    ensure_eq!(code.status.code(), Some(9), "exit code of the exec");
    let text = daemon.must(&["tasks", "ps", &id]).await?;
    ensure!(text.contains(&pid.to_string()), "no init in {text}");
    daemon.must(&["tasks", "metrics", &id]).await?;
    daemon.must(&["tasks", "pause", &id]).await?;
    ensure_eq!(
        status_of(daemon, &id).await?.map(|task| task.1).as_deref(),
        Some("PAUSED"),
        "status"
    );
    daemon.must(&["tasks", "resume", &id]).await?;
    daemon.must(&["tasks", "kill", "--signal", "9", &id]).await?;
    deadline::until("init's end", deadline::HANG, || !is_alive(pid)).await?;
    stopped(daemon, &id).await?;
    let removed = daemon.output(&["tasks", "rm", &id]).await?;
    let said = String::from_utf8_lossy(&removed.stderr);
    ensure!(removed.status.success() && said.contains("exit code 137"), "{said}");
    deadline::until("the shim's end", deadline::HANG, || !is_alive(shim)).await?;
    daemon.must(&["containers", "rm", &id]).await.map(drop)
}

async fn stopped(daemon: &Containerd<'_>, id: &str) -> Result {
    let all = async {
        while status_of(daemon, id).await?.is_some_and(|task| task.1 != "STOPPED") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    let limited = tokio::time::timeout(deadline::HANG, all).await;
    limited.map_err(|_| integration::failure::Failure::new("the task does not stop"))?
}

async fn on_a_terminal(_: &Fixture, daemon: &mut Containerd<'_>) -> Result {
    let id = daemon.id("tty");
    let script = "tty; read word; echo got $word; exit 5";
    let ctr = daemon.ctr(&["run", "--rm", "--tty", image::NAME, &id, "sh", "-c", script]);
    let (code, shown) = OnTerminal::spawn(ctr)?.converse("hello\n").await?;
    ensure!(shown.contains("/dev/pts/") && shown.contains("got hello"), "{shown:?}");
    ensure_eq!(code, Some(5), "exit code");
    Ok(())
}

async fn restarted_daemon(_: &Fixture, daemon: &mut Containerd<'_>) -> Result {
    let [stays, ends] = ["stays", "ends"].map(|name| daemon.id(name));
    daemon.must(&["run", "--detach", image::NAME, &stays, "sleep", "1000"]).await?;
    daemon.must(&["run", "--detach", image::NAME, &ends, "sh", "-c", "sleep 1; exit 7"]).await?;
    let pid = status_of(daemon, &ends).await?.map(|task| task.0).unwrap_or_default();
    daemon.restart(Signal::SIGKILL).await?;
    ensure_eq!(
        status_of(daemon, &stays).await?.map(|task| task.1).as_deref(),
        Some("RUNNING"),
        "status"
    );
    daemon.must(&["tasks", "exec", "--exec-id", "e", &stays, "true"]).await?;
    deadline::until("the end of the other", deadline::HANG, || !is_alive(pid)).await?;
    stopped(daemon, &ends).await?;
    // A task that ended while nobody was there still has its status.
    let removed = daemon.output(&["tasks", "rm", &ends]).await?;
    let said = String::from_utf8_lossy(&removed.stderr);
    ensure!(said.contains("exit code 7"), "exit code over a restart: {said}");
    daemon.must(&["containers", "rm", &ends]).await?;
    force_rm(daemon, &stays).await
}

async fn force_rm(daemon: &Containerd<'_>, id: &str) -> Result {
    daemon.output(&["tasks", "rm", "--force", id]).await?;
    daemon.must(&["containers", "rm", id]).await.map(drop)
}

async fn killed_shim(_: &Fixture, daemon: &mut Containerd<'_>) -> Result {
    let id = daemon.id("orphan");
    // Without streams: the client's fifos would stay, as nobody deletes this task.
    daemon.must(&["run", "--detach", "--null-io", image::NAME, &id, "sleep", "1000"]).await?;
    let pid = status_of(daemon, &id).await?.map(|task| task.0).unwrap_or_default();
    let shim = parent_of(pid).unwrap_or_default();
    kill(Pid::from_raw(shim.try_into()?), Signal::SIGKILL)?;
    deadline::until("the orphaned init's end", deadline::HANG, || !is_alive(pid)).await?;
    let bundle = daemon.bundles().join(&id);
    deadline::until("the bundle's end", deadline::HANG, || !bundle.exists()).await?;
    ensure!(status_of(daemon, &id).await?.is_none(), "the task stays in the list");
    for path in integration::fixture::socket_paths(&daemon.address(), &namespace(&id), &id) {
        // A killed shim cannot remove its socket, and containerd does not: the next start for this id does.
        drop(std::fs::remove_file(path));
    }
    daemon.must(&["containers", "rm", &id]).await.map(drop)
}

fn namespace(id: &str) -> String {
    id.split('-').next().unwrap_or_default().to_owned()
}

async fn by_absolute_path(_: &Fixture, daemon: &mut Containerd<'_>) -> Result {
    let id = daemon.id("abs");
    let shim = paths::shim()?.display().to_string();
    let arguments = ["run", "--rm", "--runtime", &shim, image::NAME, &id, "echo", "hello"];
    ensure_eq!(daemon.must(&arguments).await?, "hello\n", "output");
    Ok(())
}

macro_rules! for_every_containerd_and_runtime {
    ($($body:ident $series:literal $runtime:literal => $name:ident;)+) => {
        $(
            #[test]
            fn $name() -> Result {
                with_containerd($series, $runtime, $body)
            }
        )+
    };
}

for_every_containerd_and_runtime! {
    one_shot "1.6" "runc" => one_shot_prints_and_returns_its_code_on_1_6_with_runc;
    one_shot "1.7" "runc" => one_shot_prints_and_returns_its_code_on_1_7_with_runc;
    one_shot "2" "runc" => one_shot_prints_and_returns_its_code_on_2_with_runc;
    one_shot "1.6" "crun" => one_shot_prints_and_returns_its_code_on_1_6_with_crun;
    one_shot "1.7" "crun" => one_shot_prints_and_returns_its_code_on_1_7_with_crun;
    one_shot "2" "crun" => one_shot_prints_and_returns_its_code_on_2_with_crun;
    long_one "1.6" "runc" => long_one_takes_execs_a_pause_and_a_kill_on_1_6_with_runc;
    long_one "1.7" "runc" => long_one_takes_execs_a_pause_and_a_kill_on_1_7_with_runc;
    long_one "2" "runc" => long_one_takes_execs_a_pause_and_a_kill_on_2_with_runc;
    long_one "1.6" "crun" => long_one_takes_execs_a_pause_and_a_kill_on_1_6_with_crun;
    long_one "1.7" "crun" => long_one_takes_execs_a_pause_and_a_kill_on_1_7_with_crun;
    long_one "2" "crun" => long_one_takes_execs_a_pause_and_a_kill_on_2_with_crun;
    on_a_terminal "1.6" "runc" => terminal_works_on_1_6_with_runc;
    on_a_terminal "1.7" "runc" => terminal_works_on_1_7_with_runc;
    on_a_terminal "2" "runc" => terminal_works_on_2_with_runc;
    on_a_terminal "2" "crun" => terminal_works_on_2_with_crun;
    restarted_daemon "1.6" "runc" => containers_outlive_the_daemon_on_1_6;
    restarted_daemon "1.7" "runc" => containers_outlive_the_daemon_on_1_7;
    restarted_daemon "2" "runc" => containers_outlive_the_daemon_on_2;
    killed_shim "1.6" "runc" => container_of_a_killed_shim_is_cleaned_up_on_1_6;
    killed_shim "1.7" "runc" => container_of_a_killed_shim_is_cleaned_up_on_1_7;
    killed_shim "2" "runc" => container_of_a_killed_shim_is_cleaned_up_on_2;
    by_absolute_path "1.6" "runc" => shim_is_found_by_its_absolute_path_on_1_6;
    by_absolute_path "1.7" "runc" => shim_is_found_by_its_absolute_path_on_1_7;
    by_absolute_path "2" "runc" => shim_is_found_by_its_absolute_path_on_2;
}
