//! The stage of the upgrade story: one node, whose containers run on while the software below them changes.
//!
//! From the bottom up:
//!
//! 1. [`story`]: what is printed while a story runs. [`shims`]: the shim binaries that may lie on the node's disk.
//! 2. [`player`]: who may run the node: a stock containerd, the task manager in containerd's place, a containerd built
//!    with it. [`glue`]: the second of these, with the harness in the role of containerd's plugin.
//! 3. [`node`]: directories that stay, and the player of the day. What it has been told to run it keeps count of, and can
//!    be asked at any moment whether all of that is still so. [`verbs`]: what one does with containers, whoever plays;
//!    [`at_once`]: with several at the same moment; [`record`]: what containerd is told of them; [`cut_off`]: what is done
//!    to manager or shim meanwhile. [`manager`]: the manager by itself. [`bundles`]: what lies on the disk; [`told`]: what
//!    the player says.
//! 4. [`mishap`]: what may go wrong at every step: kills, and a bad [`disk`]. [`play`](mod@play): the frame of every story.

mod at_once;
mod bundles;
mod cut_off;
mod disk;
pub mod glue;
mod manager;
pub mod mishap;
pub mod node;
pub mod play;
pub mod player;
mod record;
pub mod shims;
pub mod story;
mod told;
mod verbs;

pub use mishap::Mishap;
pub use node::{Container, Node, Status};
pub use play::play;
pub use player::Player;
pub use shims::ShimBinary;
pub use story::Story;
