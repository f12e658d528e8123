//! Pods through the task manager in a containerd build, driven by crictl; and what CRI is accepted by, critest.

use std::time::Duration;

use integration::cri::{Build, Node, critest, scenes, tools};
use integration::failure::Result;
use integration::scenario::{scenario, scenario_lasting, skip};
use integration::{ensure, ensure_eq, image};

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
