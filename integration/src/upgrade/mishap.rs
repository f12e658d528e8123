//! What may go wrong at every step of a story.

use nix::sys::signal::Signal;

use super::node::Node;
use super::shims::ShimBinary;
use crate::failure::{Context, Result};

/// One of them. It happens again and again: at or after every step that a node is told to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// All goes well.
    None,
    /// Another shim binary lies on the disk after every step: ours for Go's, Go's for ours, ours for a newer ours.
    SwappedShims,
    /// The task manager is killed after every step, where it plays.
    KilledManager,
    /// The task manager is killed in the middle of every creation and deletion, where it plays.
    KilledAtWork,
    /// All of containerd is killed after every step.
    KilledContainerd,
    /// The disk of the state directory is full at every step, where ours plays. Afterwards there is space again.
    FullDisk,
    /// That disk is read-only whenever our manager starts. Afterwards it is not.
    ReadOnlyDisk,
}

impl Node<'_> {
    /// What happens after a step.
    pub(super) async fn after_step(&mut self) -> Result {
        /// One after the other; the second ours is the newer one, a file of its own.
        const BINARIES: [ShimBinary; 5] = [
            ShimBinary::Ours,
            ShimBinary::Ours,
            ShimBinary::Go("2"),
            ShimBinary::Ours,
            ShimBinary::Go("1.7"),
        ];
        match self.mishap {
            Mishap::SwappedShims => {
                let next = BINARIES.get(self.swaps % BINARIES.len()).copied();
                let next = next.unwrap_or(ShimBinary::Ours);
                self.swaps += 1;
                next.install(self.fixture)?;
                self.story.aside(format!("{next} lies on the disk now"));
            }
            Mishap::KilledManager if self.has_manager() => {
                self.story.aside("kill -9 of the manager");
                self.kill_manager().await?;
                self.start_manager().await?;
                self.check().await.context("after kill -9 of the manager")?;
            }
            Mishap::KilledContainerd if self.playing.is_some() => {
                self.story.aside(format!("kill -9 of {}", self.player));
                self.end(Signal::SIGKILL).await?;
                self.boot(self.player).await.context("after kill -9")?;
            }
            _ => {}
        }
        Ok(())
    }
}
