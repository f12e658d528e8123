//! In which order the containers of a pod end.

use integration::ensure;
use integration::failure::Result;
use integration::shim::is_alive;
use integration::upgrade::{Container, Mishap, Node, Player, ShimBinary, Story, play};

use crate::tales::{NEW, OLD, pod};

/// How a pod ends.
#[derive(Debug, Clone, Copy)]
enum End {
    PauseDeletedFirst,
    PauseDiesFirst,
    PauseLast,
    AllAtOnce,
}

const ENDS: [End; 4] =
    [End::PauseDeletedFirst, End::PauseDiesFirst, End::PauseLast, End::AllAtOnce];

/// Pods of two containers before the change and one added after it, ended in every order.
async fn pods_end(
    node: &mut Node<'_>,
    story: &Story,
    old: Player,
    shim: ShimBinary,
    ours: Player,
) -> Result {
    shim.install(node.fixture())?;
    node.boot(old).await?;
    let pods = ["a", "b", "c", "d"].map(|name| pod(node, name));
    for [pause, one, two, _] in &pods {
        for container in [pause, one, two] {
            node.run(container).await?;
        }
    }
    node.switch(ours).await?;
    for [.., three] in &pods {
        node.run(three).await?;
    }
    story.proven(format!(
        "pods of {shim} are taken over from {old}, with a container more for each"
    ));
    for (members, end) in pods.iter().zip(ENDS) {
        let shims = shims_of(node, members)?;
        pod_ends(node, members, end).await?;
        for shim in shims {
            node.gone(shim).await?;
        }
        node.check().await?;
        story.proven(format!("{end:?}: nobody ends too early, and the shim with the last"));
    }
    Ok(())
}

async fn pod_ends(node: &mut Node<'_>, members: &[Container; 4], end: End) -> Result {
    let [pause, one, two, three] = members;
    let ids = |members: [&Container; 4]| members.map(|container| container.id.clone());
    match end {
        End::PauseDeletedFirst => one_by_one(node, &ids([pause, two, three, one])).await,
        End::PauseDiesFirst => {
            node.dies(&pause.id).await?;
            for container in [one, two, three] {
                node.exec(&container.id).await?;
            }
            one_by_one(node, &ids([one, three, two, pause])).await
        }
        End::PauseLast => one_by_one(node, &ids([three, one, two, pause])).await,
        End::AllAtOnce => node.remove_at_once(&ids([one, pause, three, two])).await,
    }
}

async fn one_by_one(node: &mut Node<'_>, ids: &[String]) -> Result {
    for (index, id) in ids.iter().enumerate() {
        let others = ids.get(index + 1..).unwrap_or_default();
        node.remove(id).await?;
        for other in others {
            ensure!(is_alive(node.shim(other)?), "the shim of {other} ends with {id}");
            // The pause container may be dead already; it is still there to be deleted.
            if !node.has_ended(other)? {
                node.exec(other).await?;
            }
        }
    }
    Ok(())
}

fn shims_of(node: &Node<'_>, members: &[Container]) -> Result<Vec<u32>> {
    members.iter().map(|container| node.shim(&container.id)).collect()
}

#[test]
fn pods_of_gos_shim_of_1_7_end_in_every_order() -> Result {
    play("order, Go's shim of 1.7", &[OLD, Player::Ours], Mishap::None, async |node, story| {
        pods_end(node, story, OLD, ShimBinary::Go("1.7"), Player::Ours).await
    })
}

#[test]
fn pods_of_gos_shim_of_2_end_in_every_order() -> Result {
    play("order, Go's shim of 2", &[NEW, Player::Ours], Mishap::None, async |node, story| {
        pods_end(node, story, NEW, ShimBinary::Go("2"), Player::Ours).await
    })
}

#[test]
fn pods_of_our_shim_end_in_every_order() -> Result {
    play("order, our shim", &[NEW, Player::Ours], Mishap::None, async |node, story| {
        pods_end(node, story, NEW, ShimBinary::Ours, Player::Ours).await
    })
}

#[test]
fn pods_of_gos_shim_of_1_7_end_in_every_order_under_our_build() -> Result {
    play("order, 1.7, our build", &[OLD, Player::Build], Mishap::None, async |node, story| {
        pods_end(node, story, OLD, ShimBinary::Go("1.7"), Player::Build).await
    })
}

#[test]
fn pods_end_in_every_order_under_our_build() -> Result {
    play("order, our build", &[NEW, Player::Build], Mishap::None, async |node, story| {
        pods_end(node, story, NEW, ShimBinary::Ours, Player::Build).await
    })
}
