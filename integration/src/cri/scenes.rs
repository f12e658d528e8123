//! What is shown of a node, and tested: pods' lives, and what they outlive. Each scene leaves the node without pods.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::node::Node;
use super::pod::{Container, Pod};
use super::tools::Build;
use crate::deadline::{self, HANG};
use crate::failure::{Context, Failure, Result};
use crate::shim::is_alive;
use crate::{ensure, ensure_eq};

/// What a scene tells while it goes: of what, and what came of it.
pub type Tell<'t> = &'t mut dyn FnMut(&str, &str);

/// Counts aloud, ten times a second, and ends with code 7 when it is told to.
const COUNT: [&str; 3] =
    ["sh", "-c", "trap 'exit 7' TERM; i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.1; done"];

/// A process that cannot be taken for another: with the time of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    pid: u32,
    parent: u32,
    started: u64,
}

impl Identity {
    fn of(pid: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("a process")?;
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map(|(_, tail)| tail.split(' ').collect()).unwrap_or_default();
        let field = |number: usize| fields.get(number).and_then(|text| text.parse().ok());
        let all = field(1).zip(field(19)).and_then(|(parent, started)| {
            Some(Self { pid, parent: u32::try_from(parent).ok()?, started })
        });
        all.ok_or_else(|| Failure::new(format!("process {pid}: {stat}")))
    }
}

/// A pod of two containers, from `runp` to `rmp`.
///
/// # Errors
/// When anything goes otherwise.
pub async fn life(node: &Node<'_>, tell: Tell<'_>) -> Result {
    let pod = Pod::run(node, "one", "rust").await?;
    tell("runp", &format!("a pod at {}", pod.address(node).await?));
    let serve = ["httpd", "-f", "-p", "8080", "-h", "/etc"];
    let server = pod.create(node, "server", &serve).await?;
    let client = pod.create(node, "client", &COUNT).await?;
    tell("create", "two containers in it");
    for container in [&server, &client] {
        ensure_eq!(container.state(node).await?, "CONTAINER_CREATED", "state");
        node.must(&["start", &container.id]).await?;
        ensure_eq!(container.state(node).await?, "CONTAINER_RUNNING", "state");
    }
    let mut shims = Vec::new();
    for pid in [pod.pid(node).await?, server.pid(node).await?, client.pid(node).await?] {
        shims.push(Identity::of(pid)?.parent);
    }
    ensure!(shims.iter().all(|shim| *shim == shims[0]), "shims of one pod: {shims:?}");
    tell("start", &format!("both; the pod's three processes have one shim, {}", shims[0]));
    until_fetched(node, &client, "http://127.0.0.1:8080/passwd").await?;
    tell("exec", "the client fetches a page of the server, over their common loopback");
    until_said(node, &client, "tick 1").await?;
    tell("logs", "what the client says is in its log");
    let stats = client.stats(node).await?;
    let memory = measure(&stats, "/memory/workingSetBytes/value")?;
    let cpu = measure(&stats, "/cpu/usageCoreNanoSeconds/value")?;
    ensure!(memory > 0 && cpu > 0, "stats: {stats}");
    tell("stats", &format!("{} kB, {} ms of CPU time", memory / 1024, cpu / 1_000_000));
    client.remove(node).await?;
    ensure_eq!(node.must(&["ps", "-aq"]).await?, server.id, "containers");
    tell("stop, rm", "the client is gone, the server serves");
    pod.remove(node).await?;
    ensure_eq!(node.must(&["pods", "-q"]).await?, "", "pods");
    deadline::until("the shim's end", HANG, || !is_alive(shims[0])).await?;
    tell("stopp, rmp", "the pod is gone, and its shim");
    Ok(())
}

/// The task manager is killed under a pod, which neither notices nor is taken for dead.
///
/// # Errors
/// When anything goes otherwise.
pub async fn killed_manager(node: &Node<'_>, tell: Tell<'_>) -> Result {
    let pod = Pod::run(node, "two", "rust").await?;
    let container = pod.start(node, "counter", &COUNT).await?;
    let before = Identity::of(container.pid(node).await?)?;
    let manager = node.manager()?;
    kill(Pid::from_raw(manager.try_into()?), Signal::SIGKILL)?;
    let next = deadline::until_some("another task manager", HANG, || {
        node.manager().ok().filter(|pid| *pid != manager)
    });
    let next = next.await?;
    ensure_eq!(container.exec(node, &["echo", "here"]).await?, "here", "output of an exec");
    ensure_eq!(container.state(node).await?, "CONTAINER_RUNNING", "state");
    ensure_eq!(Identity::of(before.pid)?, before, "the container's process");
    tell("kill -9", &format!("task manager {manager} killed, {next} goes on; exec works"));
    // The end comes to CRI by a wait that began under the manager that was killed.
    container.exec(node, &["kill", "-TERM", "1"]).await?;
    container.until(node, "CONTAINER_EXITED").await?;
    ensure_eq!(container.exit_code(node).await?, 7, "exit code");
    tell("exit", "a container that ends afterwards is reported, with its code");
    pod.remove(node).await
}

/// containerd is killed under a pod, and its task manager goes with it; the next ones know the pod.
///
/// # Errors
/// When anything goes otherwise.
pub async fn killed_containerd(node: &mut Node<'_>, tell: Tell<'_>) -> Result {
    let pod = Pod::run(node, "four", "rust").await?;
    let container = pod.start(node, "counter", &COUNT).await?;
    let before = Identity::of(container.pid(node).await?)?;
    let manager = node.manager()?;
    node.end(Signal::SIGKILL).await?;
    deadline::until("the end of the task manager", HANG, || !is_alive(manager)).await?;
    node.start_again().await?;
    ensure_eq!(container.exec(node, &["echo", "here"]).await?, "here", "output of an exec");
    ensure_eq!(Identity::of(before.pid)?, before, "the container's process");
    container.exec(node, &["kill", "-TERM", "1"]).await?;
    container.until(node, "CONTAINER_EXITED").await?;
    ensure_eq!(container.exit_code(node).await?, 7, "exit code");
    uninterrupted(&container)?;
    pod.remove(node).await?;
    tell("kill -9", "containerd killed and its manager gone with it; the next ones go on");
    Ok(())
}

/// A shim is killed: its pod is told to be dead, and can be removed.
///
/// # Errors
/// When anything goes otherwise.
pub async fn killed_shim(node: &Node<'_>, tell: Tell<'_>) -> Result {
    let pod = Pod::run(node, "three", "rust").await?;
    let container = pod.start(node, "counter", &COUNT).await?;
    let shim = Identity::of(container.pid(node).await?)?.parent;
    kill(Pid::from_raw(shim.try_into()?), Signal::SIGKILL)?;
    container.until(node, "CONTAINER_EXITED").await?;
    let looks = async {
        while pod.state(node).await? != "SANDBOX_NOTREADY" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Result::Ok(())
    };
    let limited = tokio::time::timeout(HANG, looks).await;
    limited.map_err(|_| Failure::new("the pod of a killed shim stays ready"))??;
    pod.remove(node).await?;
    for path in crate::fixture::socket_paths(&node.address(), super::node::NAMESPACE, &pod.id) {
        // A killed shim cannot remove its socket: whoever starts one of that name next does.
        drop(fs::remove_file(path));
    }
    tell(
        "kill -9",
        &format!("shim {shim} killed: its container and pod are reported dead, and removed"),
    );
    Ok(())
}

/// Pods move with their node from one build to the other and back, and the last is deleted by whichever runs.
///
/// # Errors
/// When anything goes otherwise.
pub async fn exchange(node: &mut Node<'_>, tell: Tell<'_>) -> Result {
    ensure_eq!(node.build(), Build::Stock, "the build to begin with");
    let mut counters = Vec::new();
    for handler in ["rust", "go"] {
        let pod = Pod::run(node, &format!("of-{handler}"), handler).await?;
        let container = pod.start(node, "counter", &COUNT).await?;
        let identity = Identity::of(container.pid(node).await?)?;
        counters.push((pod, container, identity));
    }
    tell("stock", "runs two pods, one with our shim and one with Go's");
    for build in [Build::Ours, Build::Stock, Build::Ours] {
        node.exchange(build).await?;
        for (pod, container, identity) in &counters {
            ensure_eq!(pod.state(node).await?, "SANDBOX_READY", "state of a pod");
            ensure_eq!(container.exec(node, &["echo", "here"]).await?, "here", "an exec");
            ensure_eq!(Identity::of(identity.pid)?, *identity, "the container's process");
            let second = pod.start(node, "second", &["sleep", "1000"]).await?;
            ensure_eq!(Identity::of(second.pid(node).await?)?.parent, identity.parent, "shim");
            second.remove(node).await?;
        }
        let name = if build == Build::Ours { "ours" } else { "stock" };
        tell(name, "takes both over: the same processes, exec works, a container joins each pod");
        if build == Build::Stock {
            let (pod, container, _) = counters.remove(0);
            uninterrupted(&container)?;
            pod.remove(node).await?;
            tell(name, "removes the pod with our shim");
        }
    }
    for (pod, container, _) in counters {
        uninterrupted(&container)?;
        pod.remove(node).await?;
    }
    ensure_eq!(node.must(&["pods", "-q"]).await?, "", "pods");
    tell("ours", "removes the pod with Go's shim; no line of their output is missing");
    Ok(())
}

/// Does the log have every number that was counted?
fn uninterrupted(container: &Container) -> Result {
    let log = fs::read_to_string(&container.log)?;
    let number = |line: &str| line.rsplit_once("tick ")?.1.parse::<usize>().ok();
    let numbers: Vec<usize> = log.lines().filter_map(number).collect();
    let gap = numbers.iter().enumerate().find(|(place, number)| place != *number);
    ensure!(numbers.len() > 1 && gap.is_none(), "the log has a gap at {gap:?}");
    Ok(())
}

/// Waits until a page can be fetched from within a container: servers take a moment to listen.
async fn until_fetched(node: &Node<'_>, container: &Container, url: &str) -> Result {
    let fetch = async {
        while container.exec(node, &["wget", "-qO-", url]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let limited = tokio::time::timeout(HANG, fetch).await;
    limited.map_err(|_| Failure::new(format!("{url} cannot be fetched")))
}

/// Waits until a container's log has a line.
async fn until_said(node: &Node<'_>, container: &Container, line: &str) -> Result {
    let read = async {
        while !node.must(&["logs", &container.id]).await?.lines().any(|said| said == line) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    let limited = tokio::time::timeout(HANG, read).await;
    limited.map_err(|_| Failure::new(format!("the log does not come to have {line:?}")))?
}

/// A number of crictl's, which writes large ones as texts.
fn measure(stats: &Value, pointer: &str) -> Result<u64> {
    let value = stats.pointer(pointer);
    let number = value.and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()));
    number.ok_or_else(|| Failure::new(format!("no {pointer} in {stats}")))
}
