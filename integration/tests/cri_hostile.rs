//! Pods while their task manager is killed, given up on, or is none: calls that are under way fail, nothing is lost, and in
//! the end everything can be removed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use integration::cri::config::{GATED, MANAGER};
use integration::cri::node::NAMESPACE;
use integration::cri::pod::Pod;
use integration::cri::{Build, Node, tools};
use integration::deadline::{self, HANG};
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::{ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

const SLEEP: [&str; 2] = ["sleep", "1000"];

/// Runs a test on a node with a handler whose runc can be held up.
fn with_gated_node<F>(test: F) -> Result
where
    F: AsyncFnOnce(&mut Node<'_>, &mut FakeRunc, &Gate) -> Result,
{
    if let Some(lacking) = tools::lacking() {
        return skip(&lacking);
    }
    scenario(async |fixture| {
        let mut runtime = FakeRunc::install(fixture)?;
        let gate = Gate::new(fixture, "gate");
        let mut node = Node::start(fixture, Build::Ours).await?;
        test(&mut node, &mut runtime, &gate).await?;
        ensure_eq!(node.must(&["pods", "-q"]).await?, "", "pods");
        node.stop().await
    })
}

/// Starts a call of crictl's.
fn begin(node: &Node<'_>, arguments: &[&str]) -> Result<Child> {
    let mut command = node.crictl(arguments)?;
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// The call has to fail, and at once: because the manager has gone.
async fn fails_unavailable(call: Child, what: &str) -> Result {
    let ended = tokio::time::timeout(HANG, call.wait_with_output()).await;
    let output = ended.map_err(|_| Failure::new(format!("{what} hangs")))??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "{what} succeeds");
    ensure!(said.to_lowercase().contains("unavailable"), "{what}: {said}");
    Ok(())
}

/// Kills the manager; gives the pid that is no manager's any more.
fn kill_manager(node: &Node<'_>) -> Result<u32> {
    let manager = node.manager()?;
    kill(Pid::from_raw(manager.try_into()?), Signal::SIGKILL)?;
    Ok(manager)
}

async fn next_manager(node: &Node<'_>, killed: u32) -> Result {
    deadline::until("another task manager", HANG, || node.manager().is_ok_and(|pid| pid != killed))
        .await
}

/// Waits until no task has left a bundle.
async fn no_bundles(node: &Node<'_>) -> Result {
    let bundles = node.bundles();
    let none = || fs::read_dir(&bundles).map_or(0, Iterator::count) == 0;
    let ended = deadline::until("the bundles' ends", HANG, none).await;
    ended.map_err(|failure| Failure::new(format!("{failure}\n{}", node.log_tail())))
}

/// Notes the sockets of what is being made, which is to leave none.
fn expect_sockets(node: &Node<'_>) -> Result {
    let bundles: Vec<_> = fs::read_dir(node.bundles())?.flatten().collect();
    ensure_eq!(bundles.len(), 1, "bundles meanwhile");
    for bundle in bundles {
        let id = bundle.file_name().to_string_lossy().into_owned();
        node.fixture().expect_socket_in(&node.address(), NAMESPACE, &id);
    }
    Ok(())
}

/// Waits until containerd has no pod and no container on record any more.
async fn until_nothing(node: &Node<'_>) -> Result {
    let gone = async {
        while !node.must(&["pods", "-q"]).await?.is_empty()
            || !node.must_ctr(&["containers", "ls", "-q"]).await?.is_empty()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Result::Ok(())
    };
    let limited = tokio::time::timeout(HANG, gone).await;
    limited.map_err(|_| Failure::new(format!("something stays:\n{}", node.log_tail())))?
}

/// The OCI runtime is at work on the pod's first container when whoever asked for it is killed.
async fn give_up(node: &Node<'_>, runtime: &mut FakeRunc, gate: &Gate, opens: bool) -> Result {
    runtime.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("create") }])?;
    let (config, _) = Pod::describe(node, "given-up")?;
    let mut call = begin(node, &["runp", "--runtime", GATED, &config.display().to_string()])?;
    gate.reached().await?;
    expect_sockets(node)?;
    call.kill().await?;
    if opens {
        gate.open()?;
    }
    no_bundles(node).await?;
    // CRI has waited for that, and so can remove what the task was made of.
    until_nothing(node).await?;
    let over = || lines_of_log(node, "given-up\\\"", "failed, error") > 0;
    deadline::until("the end of the call", HANG, over).await?;
    if !opens {
        gate.open()?;
    }
    runtime.obey(&[])?;
    // And another of that name can be.
    let pod = Pod::run(node, "given-up", GATED).await?;
    pod.remove(node).await
}

#[test]
fn a_pod_that_is_given_up_on_while_it_is_made_leaves_nothing() -> Result {
    with_gated_node(async |node, runtime, gate| give_up(node, runtime, gate, true).await)
}

#[test]
fn a_pod_that_is_given_up_on_while_its_runtime_hangs_leaves_nothing() -> Result {
    with_gated_node(async |node, runtime, gate| give_up(node, runtime, gate, false).await)
}

/// The next manager finds the shim in the middle of it, or with a task that nobody has been told of.
async fn cut_off(node: &Node<'_>, runtime: &mut FakeRunc, gate: &Gate, half: bool) -> Result {
    runtime.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("create") }])?;
    let (config, _) = Pod::describe(node, "cut")?;
    let call = begin(node, &["runp", "--runtime", GATED, &config.display().to_string()])?;
    gate.reached().await?;
    expect_sockets(node)?;
    let killed = kill_manager(node)?;
    if half {
        next_manager(node, killed).await?;
    } else {
        gate.open()?;
    }
    fails_unavailable(call, "runp").await?;
    next_manager(node, killed).await?;
    no_bundles(node).await?;
    until_nothing(node).await?;
    gate.open()?;
    runtime.obey(&[])
}

#[test]
fn a_manager_killed_while_a_pod_is_made_fails_the_call_and_leaves_nothing() -> Result {
    with_gated_node(async |node, runtime, gate| cut_off(node, runtime, gate, false).await)
}

#[test]
fn a_manager_killed_while_a_pods_runtime_hangs_fails_the_call_and_leaves_nothing() -> Result {
    with_gated_node(async |node, runtime, gate| cut_off(node, runtime, gate, true).await)
}

#[test]
fn a_manager_killed_under_any_call_of_a_container_fails_that_call_alone() -> Result {
    with_gated_node(async |node, runtime, _| {
        let pod = Pod::run(node, "pod", GATED).await?;
        let lasting = pod.start(node, "lasting", &SLEEP).await?;
        let steps = [
            ("start", "create", true),
            ("start", "start", true),
            ("exec", "exec", true),
            ("stop", "kill", false),
        ];
        for (step, (verb, subcommand, fails)) in steps.into_iter().enumerate() {
            let what = format!("{verb} at runc {subcommand}");
            let gate = Gate::new(node.fixture(), &format!("gate{step}"));
            let name = format!("c{step}");
            let container = match verb {
                "start" => pod.create(node, &name, &SLEEP).await?,
                _ => pod.start(node, &name, &SLEEP).await?,
            };
            let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on(subcommand) };
            runtime.obey(&[rule.of(&container.id)])?;
            let arguments: &[&str] = match verb {
                "exec" => &["exec", "--sync", &container.id, "echo", "here"],
                "stop" => &["stop", "--timeout", "5", &container.id],
                _ => &["start", &container.id],
            };
            let call = begin(node, arguments)?;
            gate.reached().await?;
            let killed = kill_manager(node)?;
            // The call has failed by now; what undoes it may have to wait for the runtime.
            gate.open()?;
            if fails {
                fails_unavailable(call, &what).await?;
            }
            next_manager(node, killed).await?;
            runtime.obey(&[])?;
            ensure_eq!(lasting.exec(node, &["echo", "here"]).await?, "here", "{what}: another");
            container.remove(node).await?;
            let left = node.bundles().join(&container.id);
            deadline::until(&what, HANG, || !left.exists()).await?;
        }
        pod.remove(node).await
    })
}

/// Puts a program into the manager's place.
fn place(fixture: &Fixture, script: &str) -> Result {
    let path = fixture.file("other-manager");
    fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    fixture.offer(MANAGER, &path)
}

/// How many lines of the daemon's log have both these words.
fn lines_of_log(node: &Node<'_>, word: &str, other: &str) -> usize {
    let log = fs::read_to_string(node.dir().join("log")).unwrap_or_default();
    log.lines().filter(|line| line.contains(word) && line.contains(other)).count()
}

#[test]
fn pods_outlast_managers_that_do_not_come_up() -> Result {
    if let Some(lacking) = tools::lacking() {
        return skip(&lacking);
    }
    scenario(async |fixture| {
        fixture.offer(MANAGER, &paths::manager()?)?;
        let node = Node::start(fixture, Build::Ours).await?;
        let pod = Pod::run(&node, "pod", "rust").await?;
        let container = pod.start(&node, "lasting", &SLEEP).await?;
        let count = fixture.file("tries");
        let tries = || fs::read_to_string(&count).map_or(0, |text| text.lines().count());
        let bad: [(&str, Option<&Path>); 4] = [
            ("exit 3", None),
            ("echo hello; exec sleep 1000", None),
            // It is there and says that it is ready, and nobody listens.
            ("echo ready; exec sleep 1000", None),
            ("", Some(Path::new("/nonexistent/manager"))),
        ];
        for (script, missing) in bad {
            let _ = fs::remove_file(&count);
            match missing {
                None => place(fixture, &format!("echo try >> {}; {script}", count.display()))?,
                Some(path) => fixture.offer(MANAGER, path)?,
            }
            let before = lines_of_log(&node, "does not come up", "trying again");
            kill_manager(&node)?;
            let tried = || lines_of_log(&node, "does not come up", "trying again") - before;
            deadline::until(script, HANG, || tried() >= 3).await?;
            let refused = node.output(&["exec", "--sync", &container.id, "true"]).await?;
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            ensure!(said.to_lowercase().contains("unavailable"), "{script}: {said}");
            ensure!(tries() <= tried() + 1, "{script}: {} tries, {} lines", tries(), tried());
            fixture.offer(MANAGER, &paths::manager()?)?;
            deadline::until("a manager", HANG, || node.manager().is_ok()).await?;
            ensure_eq!(container.exec(&node, &["echo", "here"]).await?, "here", "{script}");
            ensure_eq!(container.state(&node).await?, "CONTAINER_RUNNING", "{script}");
        }
        pod.remove(&node).await?;
        node.stop().await
    })
}
