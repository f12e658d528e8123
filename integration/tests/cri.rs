//! Pods through the task manager in a containerd build, driven by crictl; and what CRI is accepted by, critest.

use std::fs;
use std::time::Duration;

use integration::cri::pod::Pod;
use integration::cri::standin::{self, StandIn};
use integration::cri::{Build, Node, critest, scenes, tools};
use integration::deadline::{self, HANG};
use integration::failure::Result;
use integration::scenario::{scenario, scenario_lasting, skip};
use integration::shim::is_alive;
use integration::{ensure, ensure_eq, image};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs a test on a node of its own.
fn with_node<F>(build: Build, test: F) -> Result
where
    F: AsyncFnOnce(&mut Node<'_>) -> Result,
{
    if let Some(lacking) = tools::lacking() {
        return skip(&lacking);
    }
    scenario(async |fixture| {
        let mut node = Node::start(fixture, build).await?;
        test(&mut node).await?;
        node.stop().await
    })
}

#[test]
fn pod_of_two_containers_lives_and_leaves_nothing() -> Result {
    with_node(Build::Ours, async |node| scenes::life(node, &mut |_, _| ()).await)
}

#[test]
fn pod_outlives_the_task_manager_and_its_end_is_reported() -> Result {
    with_node(Build::Ours, async |node| scenes::killed_manager(node, &mut |_, _| ()).await)
}

#[test]
fn pod_of_a_killed_shim_is_reported_and_removed() -> Result {
    with_node(Build::Ours, async |node| scenes::killed_shim(node, &mut |_, _| ()).await)
}

#[test]
fn pod_outlives_a_killed_containerd() -> Result {
    with_node(Build::Ours, async |node| scenes::killed_containerd(node, &mut |_, _| ()).await)
}

#[test]
fn ctr_of_our_build_runs_containers() -> Result {
    with_node(Build::Ours, async |node| {
        let (one, long) = (node.container_id("one"), node.container_id("long"));
        let run = ["run", "--rm", "--runtime", "io.containerd.runc.v2", image::NAME, &one];
        let said = node.must_ctr(&[&run[..], &["echo", "hello"]].concat()).await?;
        ensure_eq!(said, "hello", "output");
        node.must_ctr(&["run", "--detach", image::NAME, &long, "sleep", "1000"]).await?;
        let said =
            node.must_ctr(&["tasks", "exec", "--exec-id", "e", &long, "echo", "here"]).await?;
        ensure_eq!(said, "here", "output of an exec");
        for question in ["ps", "metrics"] {
            let said = node.must_ctr(&["tasks", question, &long]).await?;
            ensure!(said.lines().count() > 1, "{question}: {said}");
        }
        node.must_ctr(&["tasks", "pause", &long]).await?;
        let said = node.must_ctr(&["tasks", "ls"]).await?;
        ensure!(said.contains("PAUSED"), "{said}");
        node.must_ctr(&["tasks", "resume", &long]).await?;
        node.must_ctr(&["tasks", "kill", "--signal", "SIGKILL", &long]).await?;
        // ctr tells the status of the killed task by failing.
        let _ = node.must_ctr(&["tasks", "rm", "--force", &long]).await;
        node.must_ctr(&["containers", "rm", &long]).await.map(drop)
    })
}

#[test]
fn pods_go_from_stock_to_our_build_and_back() -> Result {
    with_node(Build::Stock, async |node| scenes::exchange(node, &mut |_, _| ()).await)
}

/// Runs a test on a node whose sandboxes a stand-in can be.
fn with_stand_in<F>(test: F) -> Result
where
    F: AsyncFnOnce(&mut Node<'_>, &StandIn) -> Result,
{
    if let Some(lacking) = tools::lacking() {
        return skip(&lacking);
    }
    scenario(async |fixture| {
        let stand_in = StandIn::install(fixture)?;
        let mut node = Node::start(fixture, Build::Ours).await?;
        fixture.expect_empty(
            &node.dir().join("state/io.containerd.sandbox.controller.v1.shim/k8s.io"),
        );
        test(&mut node, &stand_in).await?;
        deadline::until("the end of the sandbox's shim", HANG, || {
            stand_in.processes().iter().all(|pid| !is_alive(*pid))
        })
        .await?;
        ensure!(stand_in.sockets().is_empty(), "sockets stay: {:?}", stand_in.sockets());
        node.stop().await
    })
}

/// Is the task of this container where the sandbox is?
fn in_the_sandbox(node: &Node<'_>, stand_in: &StandIn, sandbox: &str, id: &str) -> Result {
    ensure_eq!(stand_in.count(&format!("v3 Create {id}")), 1, "creations of {id}");
    ensure_eq!(stand_in.count(&format!("start {id}")), 0, "shims of its own for {id}");
    ensure_eq!(stand_in.processes().len(), 1, "processes");
    let noted = fs::read_to_string(node.bundles().join(id).join("sandbox"))?;
    ensure_eq!(noted, sandbox, "the bundle's sandbox");
    Ok(())
}

#[test]
fn tasks_of_a_pod_of_the_shim_sandboxer_are_in_the_sandboxs_own_shim() -> Result {
    with_stand_in(async |node, stand_in| {
        let pod = Pod::run(node, "sandboxed", standin::HANDLER).await?;
        for call in ["CreateSandbox", "StartSandbox"] {
            ensure_eq!(stand_in.count(&format!("sandbox {call} {}", pod.id)), 1, "{call}");
        }
        ensure_eq!(pod.state(node).await?, "SANDBOX_READY", "state of the pod");
        let first = pod.create(node, "first", &["sleep", "1000"]).await?;
        ensure_eq!(first.state(node).await?, "CONTAINER_CREATED", "state");
        node.must(&["start", &first.id]).await?;
        in_the_sandbox(node, stand_in, &pod.id, &first.id)?;
        // Neither another manager nor another containerd changes anything about it.
        let manager = node.manager()?;
        kill(Pid::from_raw(manager.try_into()?), Signal::SIGKILL)?;
        deadline::until("another task manager", HANG, || {
            node.manager().is_ok_and(|pid| pid != manager)
        })
        .await?;
        ensure_eq!(first.state(node).await?, "CONTAINER_RUNNING", "state");
        node.exchange(Build::Ours).await?;
        ensure_eq!(pod.state(node).await?, "SANDBOX_READY", "state of the pod");
        ensure_eq!(first.state(node).await?, "CONTAINER_RUNNING", "state");
        let second = pod.start(node, "second", &["sleep", "1000"]).await?;
        in_the_sandbox(node, stand_in, &pod.id, &second.id)?;
        for container in [first, second] {
            node.must(&["stop", "--timeout", "10", &container.id]).await?;
            ensure_eq!(container.state(node).await?, "CONTAINER_EXITED", "state");
            ensure_eq!(container.exit_code(node).await?, 143, "exit code");
            node.must(&["rm", &container.id]).await?;
            ensure_eq!(stand_in.count(&format!("v3 Delete {}", container.id)), 1, "deletions");
            // The task's end is not the sandbox's.
            ensure_eq!(pod.state(node).await?, "SANDBOX_READY", "state of the pod");
        }
        node.must(&["stopp", &pod.id]).await?;
        ensure_eq!(pod.state(node).await?, "SANDBOX_NOTREADY", "state of the pod");
        node.must(&["rmp", &pod.id]).await?;
        ensure_eq!(stand_in.count(&format!("sandbox ShutdownSandbox {}", pod.id)), 1, "shutdowns");
        ensure_eq!(node.must(&["pods", "-q"]).await?, "", "pods");
        Ok(())
    })
}

/// ctr says of a sandbox no more than its id.
#[test]
fn a_client_that_names_a_sandbox_alone_gets_its_task_into_the_sandboxs_own_shim() -> Result {
    with_stand_in(async |node, stand_in| {
        let (sandbox, id) = (node.container_id("sandbox"), node.container_id("member"));
        let spec = node.dir().join("sandbox.json");
        fs::write(&spec, "{\"ociVersion\": \"1.0.2\"}")?;
        let spec = spec.display().to_string();
        let runtime = ["--runtime", standin::RUNTIME];
        node.must_ctr(&[&["sandboxes", "run"][..], &runtime, &[&spec, &sandbox]].concat()).await?;
        let run = ["run", "--detach", "--null-io", "--sandbox", &sandbox];
        node.must_ctr(&[&run[..], &runtime, &[image::NAME, &id, "sleep", "1000"]].concat()).await?;
        in_the_sandbox(node, stand_in, &sandbox, &id)?;
        node.must_ctr(&["tasks", "kill", "--signal", "SIGKILL", &id]).await?;
        // ctr tells the status of the killed task by failing.
        let _ = node.must_ctr(&["tasks", "rm", "--force", &id]).await;
        node.must_ctr(&["containers", "rm", &id]).await?;
        node.must_ctr(&["sandboxes", "rm", &sandbox]).await.map(drop)
    })
}

#[test]
fn critest_accepts_our_build() -> Result {
    if let Some(lacking) = tools::lacking() {
        return skip(&lacking);
    }
    scenario_lasting(Duration::from_secs(600), async |fixture| {
        let node = Node::start(fixture, Build::Ours).await?;
        let outcome = critest::run(&node).await?;
        let failed: Vec<String> =
            outcome.failed.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        ensure!(failed.is_empty(), "{} specs fail:\n  {}", failed.len(), failed.join("\n  "));
        ensure!(outcome.passed.len() > 80, "only {:?} ran", outcome.passed);
        ensure_eq!(node.must(&["pods", "-q"]).await?, "", "pods");
        node.stop().await
    })
}
