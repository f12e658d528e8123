//! The stories that are also played with mishaps at every step.

use integration::failure::Result;
use integration::shim::is_alive;
use integration::upgrade::shims::install_v1;
use integration::upgrade::{Container, Node, Player, ShimBinary, Story};
use integration::{ensure, ensure_eq};

/// Who plays before.
pub(crate) const OLD: Player = Player::Stock("1.7");
/// Who plays before, where shims have a process for every container.
pub(crate) const OLDEST: Player = Player::Stock("1.6");
/// Who plays after, and announces version 3.
pub(crate) const NEW: Player = Player::Stock("2");

/// Three containers and the pause container of a pod.
pub(crate) fn pod(node: &Node<'_>, name: &str) -> [Container; 4] {
    let pause = node.pause_container(&format!("{name}-pause"));
    let [one, two, three] =
        ["one", "two", "three"].map(|member| node.member(&pause, &format!("{name}-{member}")));
    [pause, one, two, three]
}

/// Everything that is kept is as it was, and answers an exec.
pub(crate) async fn everything_answers(node: &Node<'_>) -> Result {
    node.check().await?;
    for id in node.ids() {
        node.exec(&id).await?;
    }
    Ok(())
}

/// A pod whose shim is older than the binary on the disk gets a container more, and outlives every restart after that.
pub(crate) async fn new_container_in_an_old_pod(
    node: &mut Node<'_>,
    story: &Story,
    ours: Player,
    new: ShimBinary,
) -> Result {
    let [pause, one, two, three] = pod(node, "a");
    let [four, five] = ["a-four", "a-five"].map(|name| node.member(&pause, name));
    ShimBinary::Go("1.7").install(node.fixture())?;
    node.boot(OLD).await?;
    for container in [&pause, &one, &two] {
        node.run(container).await?;
    }
    let shim = node.shim(&pause.id)?;
    ensure_eq!(node.shim(&two.id)?, shim, "one shim for the pod");
    story.proven(format!("{OLD} runs pod A with two containers; one shim of 1.7 has them all"));

    new.install(node.fixture())?;
    node.switch(ours).await?;
    story.proven(format!("{ours} finds all of them again, with {new} on the disk"));

    node.run(&three).await?;
    ensure_eq!(node.shim(&three.id)?, shim, "the shim of the new container");
    node.exec(&three.id).await?;
    story.proven(
        "a new container in pod A is created and started by the old shim, and answers an exec",
    );
    ensure_eq!(node.version_on_disk(&three.id)?, Some(2), "version in bootstrap.json");
    story.proven("its bootstrap.json says 2: what was found out is written down");

    node.run_at_once([&four, &five]).await?;
    for container in [&four, &five] {
        ensure_eq!(node.shim(&container.id)?, shim, "the shim of a container that was not alone");
        ensure_eq!(node.version_on_disk(&container.id)?, Some(2), "version in bootstrap.json");
    }
    story.proven("so it is with two more at the same moment, each by itself");

    node.switch(ours).await?;
    everything_answers(node).await?;
    story.proven(format!("after a restart of {ours} all run and answer"));

    node.switch(OLD).await?;
    everything_answers(node).await?;
    story.proven(format!(
        "back under {OLD} all run and answer: it finds the addresses it looks for"
    ));

    node.switch(NEW).await?;
    everything_answers(node).await?;
    story.proven(format!("after a change to {NEW} all run and answer"));

    last_one_out(node, story, &pause, &[&three, &one, &five, &two, &four]).await
}

/// Deletes the members one by one, then the pause container: the shim goes with the last, and not before.
async fn last_one_out(
    node: &mut Node<'_>,
    story: &Story,
    pause: &Container,
    members: &[&Container],
) -> Result {
    let shim = node.shim(&pause.id)?;
    for container in members {
        node.remove(&container.id).await?;
        ensure!(is_alive(shim), "the shim leaves the others alone");
        node.check().await?;
    }
    node.remove(&pause.id).await?;
    node.gone(shim).await?;
    story.proven(format!("{} deletes all; the shim ends with the last, not before", node.player()));
    Ok(())
}

/// A bundle that says 3 of a shim that speaks 2 is found at load, spoken to in 2, and corrected.
pub(crate) async fn a_downgrade_that_was_forgotten(
    node: &mut Node<'_>,
    story: &Story,
    ours: Player,
) -> Result {
    let [pause, one, two, three] = pod(node, "b");
    ShimBinary::Go("1.7").install(node.fixture())?;
    node.boot(OLD).await?;
    for container in [&pause, &one] {
        node.run(container).await?;
    }
    ShimBinary::Go("2").install(node.fixture())?;
    node.switch(NEW).await?;
    node.run(&two).await?;
    ensure_eq!(node.version_on_disk(&two.id)?, Some(3), "what stock containerd leaves behind");
    story.proven(format!("{NEW} adds a container to a pod of 1.7, and leaves 3 in bootstrap.json"));

    node.switch(ours).await?;
    node.exec(&two.id).await?;
    ensure_eq!(node.version_on_disk(&two.id)?, Some(2), "version in bootstrap.json after load");
    story.proven(format!("{ours} loads it, speaks 2 with it, and writes 2 down"));

    node.run(&three).await?;
    node.forge_version_on_disk(&three.id, 3)?;
    node.switch(ours).await?;
    ensure_eq!(node.version_on_disk(&three.id)?, Some(2), "version in bootstrap.json after load");
    everything_answers(node).await?;
    story.proven("so does the next one, with a file that was forged; all run and answer");

    node.switch(NEW).await?;
    everything_answers(node).await?;
    node.switch(ours).await?;
    story.proven(format!("all run and answer under {NEW}, and under {ours} again"));
    last_one_out(node, story, &pause, &[&one, &two, &three]).await
}

/// The shims of 1.6 that have a process for every container: each is shut down by its own deletion.
pub(crate) async fn a_process_for_every_container(
    node: &mut Node<'_>,
    story: &Story,
    ours: Player,
) -> Result {
    install_v1(node.fixture(), "1.6")?;
    node.boot(OLDEST).await?;
    let v1 =
        |container: Container| Container { runtime: "io.containerd.runc.v1".into(), ..container };
    let [pause, one, two, three] = pod(node, "c").map(v1);
    let [alone, later] = ["alone", "later"].map(|name| v1(node.container(name)));
    for container in [&pause, &one, &alone, &two] {
        node.run(container).await?;
    }
    each_its_own(node)?;
    story.proven(format!("{OLDEST} runs a pod and a lone container, with a v1 shim for each"));

    node.switch(ours).await?;
    for container in [&three, &later] {
        node.run(container).await?;
    }
    each_its_own(node)?;
    everything_answers(node).await?;
    story.proven(format!(
        "{ours} finds them, and adds one to the pod and a lone one, each with its own shim"
    ));

    // The pod's pause container in the middle: what comes after it must not wait for it.
    for container in [&one, &later, &pause, &three, &alone] {
        let shim = node.shim(&container.id)?;
        node.remove(&container.id).await?;
        node.gone(shim).await?;
        everything_answers(node).await?;
    }
    story
        .proven("each shim ends with the deletion of its own container; the others run and answer");
    node.switch(OLDEST).await?;
    let shim = node.shim(&two.id)?;
    everything_answers(node).await?;
    node.remove(&two.id).await?;
    node.gone(shim).await?;
    story.proven(format!("{OLDEST} gets the last one back, and deletes it"));
    Ok(())
}

/// No two containers share a shim.
pub(crate) fn each_its_own(node: &Node<'_>) -> Result {
    let mut shims = Vec::new();
    for id in node.ids() {
        shims.push(node.shim(&id)?);
    }
    let count = shims.len();
    shims.sort_unstable();
    shims.dedup();
    ensure_eq!(shims.len(), count, "number of shims");
    Ok(())
}
