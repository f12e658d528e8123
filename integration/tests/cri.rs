//! Pods through the task manager in a containerd build, driven by crictl; and what CRI is accepted by, critest.

use integration::cri::{Build, Node, scenes, tools};
use integration::failure::Result;
use integration::scenario::{scenario, skip};

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
fn pods_go_from_stock_to_our_build_and_back() -> Result {
    with_node(Build::Stock, async |node| scenes::exchange(node, &mut |_, _| ()).await)
}
