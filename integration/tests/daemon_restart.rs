//! The daemon ends, is killed, or loses the containerd behind it: containers run on and are all found again.

use std::time::Duration;

use integration::daemon::{self, Events, in_front_of};
use integration::failure::{Failure, Result};
use integration::image;
use integration::shim::is_alive;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::sys::signal::Signal;
use tokio::process::Command;

#[test]
fn containers_outlive_a_stop_and_their_exits_are_not_lost() -> Result {
    in_front_of("2", async |_, _, daemon| {
        let [stays, ends] = ["stays", "ends"].map(|name| daemon.id(name));
        let pid = daemon.run_detached(&stays).await?;
        let run = ["run", "--detach", "--null-io", image::NAME, &ends, "sh", "-c"];
        daemon.must(&[&run[..], &["sleep 1; exit 7"]].concat()).await?;
        let ended = daemon.status_of(&ends).await?.map(|task| task.0).unwrap_or_default();
        ensure_eq!(daemon.signal(Signal::SIGTERM).await?, Some(0), "exit code of the daemon");
        ensure!(!daemon.address().exists(), "the socket stays");
        deadline::until("the end of the other", deadline::HANG, || !is_alive(ended)).await?;
        ensure!(is_alive(pid), "the container has ended with the daemon");
        daemon.start_again().await?;
        daemon.must(&["tasks", "exec", "--exec-id", "e", &stays, "true"]).await?;
        daemon.until_status(&ends, "STOPPED").await?;
        let removed = daemon.output(&["tasks", "rm", &ends]).await?;
        let said = String::from_utf8_lossy(&removed.stderr);
        ensure!(said.contains("exit code 7"), "exit code over a restart: {said}");
        daemon.must(&["containers", "rm", &ends]).await?;
        daemon.remove(&stays).await
    })
}

#[test]
fn many_containers_outlive_daemons_that_are_killed() -> Result {
    const CONTAINERS: usize = 20;
    const KILLS: usize = 5;
    in_front_of("2", async |_, _, daemon| {
        let ids: Vec<String> = (0..CONTAINERS).map(|n| daemon.id(&format!("n{n}"))).collect();
        let mut pids = Vec::new();
        for id in &ids {
            pids.push(daemon.run_detached(id).await?);
        }
        for round in 0..KILLS {
            daemon.signal(Signal::SIGKILL).await?;
            daemon.start_again().await?;
            let list = daemon.must(&["tasks", "ls"]).await?;
            for (id, pid) in ids.iter().zip(&pids) {
                let line = list.lines().find(|line| line.starts_with(id.as_str()));
                let line = line.unwrap_or_default();
                let fields: Vec<&str> = line.split_whitespace().skip(1).collect();
                ensure_eq!(
                    fields,
                    [pid.to_string().as_str(), "RUNNING"],
                    "task {id}, round {round}"
                );
            }
        }
        for id in &ids {
            daemon.remove(id).await?;
        }
        Ok(())
    })
}

/// Killed at any moment of a create: either the container is there afterwards, or nothing of it is, and the id is free.
#[test]
fn a_daemon_killed_during_creates_leaves_whole_containers_or_none() -> Result {
    const ROUNDS: u64 = 12;
    in_front_of("2", async |_, _, daemon| {
        for round in 0..ROUNDS {
            let id = daemon.id(&format!("r{round}"));
            let arguments = ["run", "--detach", "--null-io", image::NAME, &id, "sleep", "1000"];
            let mut client = daemon.ctr(&arguments).stderr(std::process::Stdio::null()).spawn()?;
            tokio::time::sleep(Duration::from_millis(20 + round * 12)).await;
            daemon.signal(Signal::SIGKILL).await?;
            let end = tokio::time::timeout(deadline::HANG, client.wait()).await;
            end.map_err(|_| Failure::new("the client hangs"))??;
            daemon.start_again().await?;
            // Listed or not, the id must be usable: what is there is removed, then it is run again.
            daemon.output(&["tasks", "rm", "--force", &id]).await?;
            let rm = daemon.output(&["containers", "rm", &id]).await?;
            let said = String::from_utf8_lossy(&rm.stderr).into_owned();
            ensure!(rm.status.success() || said.contains("not found"), "{said}");
            // The client was cut off before it could remove the snapshot it had made.
            daemon.output(&["snapshots", "rm", &id]).await?;
            daemon.run_detached(&id).await?;
            daemon.remove(&id).await?;
        }
        Ok(())
    })
}

#[test]
fn a_containerd_that_restarts_behind_is_waited_for() -> Result {
    in_front_of("2", async |_, containerd, daemon| {
        let [one, two] = ["one", "two"].map(|name| daemon.id(name));
        daemon.run_detached(&one).await?;
        daemon.run_detached(&two).await?;
        containerd.restart(Signal::SIGKILL).await?;
        daemon.must(&["version"]).await?;
        let events = Events::follow(daemon).await?;
        daemon.must(&["tasks", "exec", "--exec-id", "e", &one, "true"]).await?;
        daemon.remove(&one).await?;
        events.until_deleted(&one).await?;
        events.stop().await?;
        daemon.remove(&two).await
    })
}

#[test]
fn without_containerd_calls_fail_as_unavailable_and_tasks_are_still_looked_after() -> Result {
    in_front_of("2", async |_, containerd, daemon| {
        let id = daemon.id("alone");
        let pid = daemon.run_detached(&id).await?;
        containerd.end(Signal::SIGTERM).await?;
        let said = daemon.refused(&["images", "ls"]).await?;
        ensure!(said.contains("unavailable"), "{said}");
        ensure_eq!(
            daemon.status_of(&id).await?,
            Some((pid, "RUNNING".to_owned())),
            "status without containerd"
        );
        containerd.start_again().await?;
        daemon.must(&["images", "ls"]).await?;
        daemon.remove(&id).await
    })
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused() -> Result {
    in_front_of("2", async |fixture, containerd, daemon| {
        let other = fixture.file("other");
        std::fs::create_dir_all(&other)?;
        let mut arguments = daemon::arguments(&other, &containerd.address());
        let state = arguments.iter().position(|flag| flag == "--state").unwrap_or_default() + 1;
        arguments[state] = daemon.state().display().to_string();
        let said = refused(&arguments).await?;
        let pid = daemon.pid().unwrap_or_default().to_string();
        ensure!(said.contains("state") && said.contains(&pid), "{said}");
        ensure!(!other.join("m.sock").exists(), "it has bound its socket");
        daemon.must(&["tasks", "ls"]).await?;
        Ok(())
    })
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_made() -> Result {
    in_front_of("2", async |fixture, containerd, _| {
        let other = fixture.file("other");
        std::fs::create_dir_all(&other)?;
        let stock = containerd.bundles();
        let stock = stock.parent().unwrap_or(&stock).display().to_string();
        let change = |flag: &str, value: &str| {
            let mut arguments = daemon::arguments(&other, &containerd.address());
            let at =
                arguments.iter().position(|word| word == flag).map_or(arguments.len(), |at| at);
            arguments
                .splice(at..(at + 2).min(arguments.len()), [flag.to_owned(), value.to_owned()]);
            arguments
        };
        let own = containerd.address().display().to_string();
        for (flag, value, reason) in [
            ("--state", stock.as_str(), "belongs to a containerd"),
            ("--root", stock.as_str(), "belongs to a containerd"),
            ("--address", own.as_str(), "containerd's own socket"),
            ("--socket-mode", "rw", "0660"),
            ("--metrics", "everywhere", "IP:PORT"),
            ("--log-level", "x=y=z", "filter"),
            ("--config", "/no/such/file", "/no/such/file"),
        ] {
            let said = refused(&change(flag, value)).await?;
            ensure!(said.contains(reason), "{flag} {value}: {said}");
            let made: Vec<_> = std::fs::read_dir(&other)?.flatten().collect();
            ensure!(made.is_empty(), "{flag} {value} has made {made:?}");
        }
        Ok(())
    })
}

/// Runs the binary, which has to refuse to serve.
async fn refused(arguments: &[String]) -> Result<String> {
    let mut command = Command::new(paths::manager()?);
    command.args(arguments).kill_on_drop(true);
    let run = tokio::time::timeout(deadline::HANG, command.output()).await;
    let output = run.map_err(|_| Failure::new(format!("it serves with {arguments:?}")))??;
    ensure!(!output.status.success(), "it succeeds with {arguments:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}
