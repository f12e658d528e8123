//! The shim's binary is broken off or gone while pods run that were started from it.

use integration::failure::Result;
use integration::upgrade::shims::{break_off, take_away};
use integration::upgrade::{Mishap, Node, Player, ShimBinary, Story, play};

use crate::tales::{NEW, OLD, everything_answers, pod};

/// Pods need the file no more, but for what is new, and for the remains of a shim that dies.
async fn binary_goes(node: &mut Node<'_>, story: &Story, ours: Player) -> Result {
    ShimBinary::Go("1.7").install(node.fixture())?;
    node.boot(OLD).await?;
    let pods = ["a", "b"].map(|name| pod(node, name));
    for [pause, one, two, _] in &pods {
        for container in [pause, one, two] {
            node.run(container).await?;
        }
    }
    let [stays, dies] = &pods;

    break_off(node.fixture())?;
    node.switch(ours).await?;
    everything_answers(node).await?;
    node.is_refused(&stays[3]).await?;
    node.remove(&stays[1].id).await?;
    node.check().await?;
    story.proven(
        "half a binary: all are found and answer, one is deleted, one more is refused as if it had never been",
    );

    take_away(node.fixture())?;
    node.switch(ours).await?;
    everything_answers(node).await?;
    node.run(&stays[3]).await?;
    story.proven("the binary is gone, another lies beside containerd: one more is added with that");

    node.lose_shim(node.shim(&dies[0].id)?).await?;
    node.check().await?;
    story.proven("a shim of the binary that is gone dies: the other one ends what it leaves");

    let shim = node.shim(&stays[0].id)?;
    for container in [&stays[0], &stays[3], &stays[2]] {
        node.remove(&container.id).await?;
    }
    node.gone(shim).await?;
    story.proven("a pod of it is deleted, and its shim ends");
    Ok(())
}

#[test]
fn binary_is_broken_off_and_goes_while_pods_run() -> Result {
    play("binary", &[OLD, Player::Ours, NEW], Mishap::None, async |node, story| {
        binary_goes(node, story, Player::Ours).await
    })
}
