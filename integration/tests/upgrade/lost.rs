//! Shims that are killed, at every stage of an upgrade.

use integration::failure::Result;
use integration::upgrade::shims::install_v1;
use integration::upgrade::{Container, Mishap, Node, Player, ShimBinary, Story, play};
use integration::{ensure, ensure_eq};
use nix::sys::signal::Signal;

use crate::tales::{NEW, OLD, OLDEST, pod};

/// Runs what was lost once more, and ends it: ids and addresses are free.
async fn run_again(node: &mut Node<'_>, containers: &[&Container]) -> Result {
    for container in containers {
        node.run(container).await?;
    }
    node.check().await?;
    for container in containers {
        let shim = node.shim(&container.id)?;
        let others = node.ids();
        node.remove(&container.id).await?;
        let shared = others.iter().any(|id| node.shim(id).is_ok_and(|other| other == shim));
        if !shared {
            node.gone(shim).await?;
        }
    }
    Ok(())
}

/// A pod each for: found by the manager, grown by it, found by the next, killed while nobody manages.
async fn pods_are_lost(node: &mut Node<'_>, story: &Story, ours: Player) -> Result {
    ShimBinary::Go("1.7").install(node.fixture())?;
    node.boot(OLD).await?;
    let pods = ["a", "b", "c", "d"].map(|name| pod(node, name));
    for [pause, one, ..] in &pods {
        for container in [pause, one] {
            node.run(container).await?;
        }
    }
    ShimBinary::Go("2").install(node.fixture())?;
    node.switch(ours).await?;
    let [found, grown, again, between] = &pods;

    node.lose_shim(node.shim(&found[0].id)?).await?;
    node.check().await?;
    run_again(node, &[&found[0], &found[2]]).await?;
    story.proven(
        "the shim of a pod that was found: both containers end and are told of; the ids are free",
    );

    for [.., two, three] in &pods[1..] {
        node.run(two).await?;
        node.run(three).await?;
    }
    node.lose_shim(node.shim(&grown[0].id)?).await?;
    node.check().await?;
    run_again(node, &[&grown[0], &grown[1]]).await?;
    story.proven("the shim of a pod that was grown: all four end, the downgraded ones too");

    node.switch(ours).await?;
    node.lose_shim(node.shim(&again[0].id)?).await?;
    node.check().await?;
    story.proven("the shim of such a pod, found by the next manager");

    node.end(Signal::SIGTERM).await?;
    node.lose_shim(node.shim(&between[0].id)?).await?;
    node.boot_unchecked(ours).await?;
    node.are_lost(&node.ids()).await?;
    ensure!(node.ids().is_empty(), "something is kept");
    story.proven(
        "the shim of such a pod, while nobody manages: the next one ends and forgets all four",
    );
    run_again(node, &[&between[0], &between[1]]).await?;
    Ok(())
}

/// A shim of its own for each: the others are none of its business.
async fn lone_ones_are_lost(node: &mut Node<'_>, story: &Story, ours: Player) -> Result {
    install_v1(node.fixture(), "1.6")?;
    node.boot(OLDEST).await?;
    let v1 =
        |container: Container| Container { runtime: "io.containerd.runc.v1".into(), ..container };
    let [pause, one, two, three] = pod(node, "p").map(v1);
    for container in [&pause, &one, &two] {
        node.run(container).await?;
    }
    node.switch(ours).await?;
    node.run(&three).await?;
    for container in [&one, &three] {
        node.lose_shim(node.shim(&container.id)?).await?;
        node.check().await?;
    }
    story.proven("v1 shims that are killed lose their own container each; the pod's others run on");
    run_again(node, &[&one]).await?;
    node.end(Signal::SIGTERM).await?;
    node.lose_shim(node.shim(&pause.id)?).await?;
    node.boot_unchecked(ours).await?;
    node.are_lost(std::slice::from_ref(&pause.id)).await?;
    node.check().await?;
    story.proven("so does that of the pause container, while nobody manages");
    let shim = node.shim(&two.id)?;
    node.remove(&two.id).await?;
    node.gone(shim).await
}

/// The same where the bundle promises too much: under who has left it so, under the manager that has corrected it, under the
/// next.
async fn forgotten_ones_are_lost(node: &mut Node<'_>, story: &Story, ours: Player) -> Result {
    ShimBinary::Go("1.7").install(node.fixture())?;
    node.boot(OLD).await?;
    let pods = ["a", "b", "c"].map(|name| pod(node, name));
    for [pause, ..] in &pods {
        node.run(pause).await?;
    }
    ShimBinary::Go("2").install(node.fixture())?;
    node.switch(NEW).await?;
    for [_, one, ..] in &pods {
        node.run(one).await?;
        ensure_eq!(node.version_on_disk(&one.id)?, Some(3), "what stock containerd leaves behind");
    }
    let [between, found, again] = &pods;

    node.end(Signal::SIGTERM).await?;
    let ids = [&between[0], &between[1]].map(|container| container.id.clone());
    node.lose_shim(node.shim(&ids[0])?).await?;
    node.boot_unchecked(ours).await?;
    node.are_lost(&ids).await?;
    node.check().await?;
    story.proven("a shim that 3 is written down for ends before it is found: both containers end");
    run_again(node, &[&between[0], &between[1]]).await?;

    node.lose_shim(node.shim(&found[0].id)?).await?;
    node.check().await?;
    story.proven("the same, once the version was corrected");

    node.switch(ours).await?;
    node.lose_shim(node.shim(&again[0].id)?).await?;
    ensure!(node.ids().is_empty(), "something is kept");
    story.proven("the same, found by the next manager");
    run_again(node, &[&again[0], &again[1]]).await
}

/// In the middle of what the shim is at.
async fn pods_are_lost_at_work(node: &mut Node<'_>, story: &Story, ours: Player) -> Result {
    ShimBinary::Go("1.7").install(node.fixture())?;
    node.boot(OLD).await?;
    let pods = ["a", "b", "c"].map(|name| pod(node, name));
    for [pause, one, ..] in &pods {
        for container in [pause, one] {
            node.run(container).await?;
        }
    }
    ShimBinary::Go("2").install(node.fixture())?;
    node.switch(ours).await?;
    let [growing, shrinking, other] = &pods;

    let [pause, one, two, _] = growing;
    node.lose_shim_at_creation(node.shim(&pause.id)?, two).await?;
    node.check().await?;
    story.proven("the shim of an old pod, while a container is added: nothing is left of any");
    run_again(node, &[pause, one, two]).await?;

    let [pause, one, two, _] = shrinking;
    node.run(two).await?;
    node.lose_shim_at_deletion(&two.id).await?;
    node.check().await?;
    story.proven("the same, while that container is deleted");
    run_again(node, &[pause, one, two]).await?;
    ends_in_good_order(node, other).await
}

/// What was left alone still ends in good order.
async fn ends_in_good_order(node: &mut Node<'_>, [pause, one, ..]: &[Container; 4]) -> Result {
    let shim = node.shim(&pause.id)?;
    node.remove(&one.id).await?;
    node.remove(&pause.id).await?;
    node.gone(shim).await
}

#[test]
fn shims_of_pods_are_killed_at_every_stage() -> Result {
    play("lost pods", &[OLD, Player::Ours, NEW], Mishap::None, async |node, story| {
        pods_are_lost(node, story, Player::Ours).await
    })
}

#[test]
fn v1_shims_are_killed_at_every_stage() -> Result {
    play("lost v1 shims", &[OLDEST, Player::Ours], Mishap::None, async |node, story| {
        lone_ones_are_lost(node, story, Player::Ours).await
    })
}

#[test]
fn shims_of_pods_are_killed_under_our_build() -> Result {
    play("lost pods, our build", &[OLD, Player::Build, NEW], Mishap::None, async |node, story| {
        pods_are_lost(node, story, Player::Build).await
    })
}

#[test]
fn shims_of_forgotten_downgrades_are_killed_at_every_stage() -> Result {
    play("lost downgrades", &[OLD, Player::Ours, NEW], Mishap::None, async |node, story| {
        forgotten_ones_are_lost(node, story, Player::Ours).await
    })
}

#[test]
fn shims_of_pods_are_killed_at_work() -> Result {
    play("lost at work", &[OLD, Player::Ours], Mishap::None, async |node, story| {
        pods_are_lost_at_work(node, story, Player::Ours).await
    })
}

#[test]
fn shims_of_pods_are_killed_at_work_under_our_build() -> Result {
    play("lost at work, our build", &[OLD, Player::Build], Mishap::None, async |node, story| {
        pods_are_lost_at_work(node, story, Player::Build).await
    })
}
