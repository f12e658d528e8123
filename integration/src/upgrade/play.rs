//! The frame of every story.

use std::time::Duration;

use super::mishap::Mishap;
use super::node::Node;
use super::player::Player;
use super::story::Story;
use crate::failure::Result;
use crate::scenario::{scenario_lasting, skip};

/// Dozens of starts and stops of whole containerds, on a machine that does other things too.
const LONGEST: Duration = Duration::from_secs(900);

/// Plays a story on a node of its own, and proves afterwards that nothing is left of it: no process, socket, mount, cgroup,
/// fifo or bundle on the machine, and no descriptor in the manager that saw the last of it go.
///
/// # Errors
/// The story's own failure, or the list of what is left.
pub fn play<F>(name: &str, players: &[Player], mishap: Mishap, tale: F) -> Result
where
    F: AsyncFnOnce(&mut Node<'_>, &Story) -> Result,
{
    if let Some(reason) = players.iter().find_map(|player| player.missing()) {
        return skip(&reason);
    }
    let story = Story::begin(name);
    scenario_lasting(LONGEST, async |fixture| {
        let mut node = Node::new(fixture, &story, mishap)?;
        tale(&mut node, &story).await?;
        node.close().await
    })?;
    story.proven("nothing is left: no process, socket, mount, cgroup, fifo, bundle, descriptor");
    Ok(())
}
