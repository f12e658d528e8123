//! Every kind of container across every change between the releases and ours, in both directions.

use integration::failure::Result;
use integration::upgrade::{Container, Mishap, Node, Player, ShimBinary, Story, play};
use integration::{ensure, shim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Containers in every state there is, of one shim binary.
#[derive(Debug)]
struct Population {
    running: Container,
    created: Container,
    paused: Container,
    exited: Container,
    pod: [Container; 2],
}

impl Population {
    async fn live(node: &mut Node<'_>, name: &str) -> Result<Self> {
        let named = |what: &str| format!("{name}-{what}");
        let pause = node.pause_container(&named("pause"));
        let app = node.member(&pause, &named("app"));
        let [running, created, paused, exited] =
            ["running", "created", "paused", "exited"].map(|what| node.container(&named(what)));
        let command = ["sh", "-c", "exit 7"].map(str::to_owned).to_vec();
        let exited = Container { command, ..exited };
        for container in [&running, &paused, &exited, &pause, &app] {
            node.run(container).await?;
        }
        node.create_only(&created).await?;
        node.exec_that_stays(&running.id).await?;
        node.pause(&paused.id).await?;
        node.ended(&exited.id).await?;
        Ok(Self { running, created, paused, exited, pod: [pause, app] })
    }

    fn ids(&self) -> Vec<String> {
        let [pause, app] = &self.pod;
        // The pause container last: containerd 1.7 and 2.1 ask no shim of a pod to end for any other.
        [&self.running, &self.created, &self.paused, &self.exited, app, pause]
            .map(|container| container.id.clone())
            .to_vec()
    }

    /// What one does with each of them, and their ends.
    async fn go_on(&self, node: &mut Node<'_>) -> Result {
        node.end_execs(&self.running.id).await?;
        node.exec(&self.running.id).await?;
        node.start(&self.created.id).await?;
        node.exec(&self.created.id).await?;
        node.resume(&self.paused.id).await?;
        node.exec(&self.paused.id).await?;
        for container in &self.pod {
            node.exec(&container.id).await?;
        }
        node.check().await?;
        for id in self.ids() {
            // A release may have ended this one at its start.
            if node.ids().contains(&id) {
                let shim = node.shim(&id)?;
                node.remove(&id).await?;
                if id != self.pod[1].id {
                    node.gone(shim).await?;
                }
            }
        }
        Ok(())
    }
}

/// A closed walk over every change from each to each other.
fn walk() -> Vec<Player> {
    let [a, b, c, ours] =
        [Player::Stock("1.6"), Player::Stock("1.7"), Player::Stock("2"), Player::Ours];
    vec![a, b, a, c, a, ours, b, c, b, ours, c, ours, a]
}

/// Whose shim lies on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    /// The player's own Go shim; under our manager that of 2.
    Own,
    Ours,
}

impl Disk {
    fn shim(self, player: Player) -> ShimBinary {
        match (self, player) {
            (Self::Ours, _) => ShimBinary::Ours,
            (Self::Own, Player::Stock(series)) => ShimBinary::Go(series),
            (Self::Own, _) => ShimBinary::Go("2"),
        }
    }
}

/// Containers that were started with Go's shim of 2 speak version 3 alone, and have no `address` file: containerd 1.x takes
/// their shims for dead.
fn is_refused(from: ShimBinary, to: Player) -> bool {
    from == ShimBinary::Go("2") && matches!(to, Player::Stock("1.6" | "1.7"))
}

async fn every_change(node: &mut Node<'_>, story: &Story, disk: Disk) -> Result {
    let walk = walk();
    let mut first = None;
    for (index, pair) in walk.windows(2).enumerate() {
        let [from, to] = *pair else { continue };
        let shim = disk.shim(from);
        shim.install(node.fixture())?;
        if first.is_none() {
            node.boot(from).await?;
            first = Some(from);
        }
        let population = Population::live(node, &format!("n{index}")).await?;
        disk.shim(to).install(node.fixture())?;
        node.end(Signal::SIGTERM).await?;
        if is_refused(shim, to) {
            refused(node, &population, to).await?;
            story.proven(format!(
                "{from} to {to}: it ends what {shim} runs, and leaves the shims, by its own rules"
            ));
            continue;
        }
        node.boot_unchecked(to).await?;
        // Containerd from 1.7 on takes a shim whose only container has ended for a leaked one.
        let reaped = node.status(&population.exited.id).await?.is_none();
        if reaped {
            ensure!(!to.is_ours(), "{to} has lost a container that had ended");
            node.forget(&population.exited.id).await?;
        }
        population.go_on(node).await?;
        let exited = if reaped { "; the ended one it reaps by its own rules" } else { "" };
        story.proven(format!("{from} to {to}, {shim}: all are found, go on, and end{exited}"));
    }
    Ok(())
}

/// The containers end with their bundles. Their shims stay: they cannot delete what has no bundle, and nobody has their
/// addresses any more. Whoever goes back to 1.x has to end them.
async fn refused(node: &mut Node<'_>, population: &Population, to: Player) -> Result {
    let shims: Result<Vec<u32>> = population.ids().iter().map(|id| node.shim(id)).collect();
    let shims = shims?;
    node.boot_unchecked(to).await?;
    node.are_lost(&population.ids()).await?;
    for pid in shims {
        if shim::is_alive(pid) {
            kill(Pid::from_raw(pid.try_into()?), Signal::SIGTERM)?;
        }
        node.gone(pid).await?;
    }
    Ok(())
}

#[test]
fn every_change_between_releases_and_ours_with_their_own_shims() -> Result {
    play("releases, own shims", &walk(), Mishap::None, async |node, story| {
        every_change(node, story, Disk::Own).await
    })
}

#[test]
fn every_change_between_releases_and_ours_with_our_shim() -> Result {
    play("releases, our shim", &walk(), Mishap::None, async |node, story| {
        every_change(node, story, Disk::Ours).await
    })
}
