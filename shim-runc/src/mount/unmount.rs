//! Taking away everything that is mounted on and below a directory.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::mountinfo::{self, OWN_MOUNTS};
use crate::error::{Error, Result};

/// A mount is busy for a moment after the last process in it has ended, or while something looks
/// through all of a node's files. containerd waits as long.
pub const PATIENCE: Duration = Duration::from_millis(2500);
/// Between attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How often to look again when mounts came or went while they were being taken away.
const MAX_LOOKS: usize = 5;

/// Takes away every mount on and below `path`, the deepest first. Nothing mounted there, or nothing
/// there at all, is no error.
///
/// Nothing is taken away lazily: a mount that is in use after `patience` stays in use, and is an error. A filesystem
/// whose server hangs holds this up for as long as it hangs, and no signal changes that.
///
/// # Errors
/// When a mount stays; those beside it have been taken away all the same.
pub fn unmount_recursive(path: &Path, patience: Duration) -> Result<()> {
    let Some(path) = as_in_table(path)? else { return Ok(()) };
    let deadline = Instant::now() + patience;
    for _ in 0..MAX_LOOKS {
        if Mounts::within(&path)?.unmount(deadline)? {
            return Ok(());
        }
    }
    Err(mounted_all_the_time(&path))
}

/// Takes every mount on and below `path` out of sight, whatever uses it, and asks no filesystem for it: for one that
/// hangs. Each goes on for those who have it open, and is gone with the last of them.
///
/// # Errors
/// When a mount stays.
pub fn detach_recursive(path: &Path) -> Result<()> {
    let Some(path) = as_in_table(path)? else { return Ok(()) };
    for _ in 0..MAX_LOOKS {
        let mounts = Mounts::within(&path)?;
        if mounts.0.is_empty() {
            return Ok(());
        }
        mounts.detach()?;
    }
    Err(mounted_all_the_time(&path))
}

fn mounted_all_the_time(path: &Path) -> Error {
    let still = format!("unmount {}: others mount there all the time", path.display());
    Error::io(still, Errno::EBUSY)
}

/// The path as the mount table writes it; `None` if there is no such path. The last part is not
/// looked at: it may be a filesystem whose server is dead.
fn as_in_table(path: &Path) -> Result<Option<PathBuf>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.unwrap_or(Path::new(".")).canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("find {}", path.display()), error)),
    }
}

/// A mount, the mount it is mounted on, and the place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    id: u64,
    parent: u64,
    point: PathBuf,
}

/// Mounts in the order in which they can be taken away.
#[derive(Debug, PartialEq, Eq)]
struct Mounts(Vec<Node>);

impl Mounts {
    /// Those on and below `path`.
    fn within(path: &Path) -> Result<Self> {
        let mut nodes = Vec::new();
        let read = mountinfo::for_each(Path::new(OWN_MOUNTS), |entry| {
            if entry.is_within(path)
                && let Some((id, parent)) = entry.ids()
            {
                nodes.push(Node { id, parent, point: entry.mount_point() });
            }
        });
        read.map_err(|error| Error::io(format!("read {OWN_MOUNTS}"), error))?;
        Ok(Self::ordered(nodes))
    }

    /// Every mount comes after those that are mounted on it. Of two that are mounted on the same
    /// one, the higher comes first: it covers the way to the other if that is below it.
    fn ordered(mut nodes: Vec<Node>) -> Self {
        // Walked from the bottom of the tree, the last first, and then turned around.
        nodes.sort_by_cached_key(|node| node.point.components().count());
        let mut children: HashMap<u64, Vec<Node>> = HashMap::new();
        let ids: HashSet<u64> = nodes.iter().map(|node| node.id).collect();
        let mut ahead = Vec::new();
        for node in nodes {
            match ids.contains(&node.parent) && node.parent != node.id {
                true => children.entry(node.parent).or_default().push(node),
                false => ahead.push(node),
            }
        }
        let mut order = Vec::new();
        while let Some(node) = ahead.pop() {
            ahead.append(&mut children.remove(&node.id).unwrap_or_default());
            order.push(node);
        }
        order.reverse();
        Self(order)
    }

    /// Detaches them: what carries others first, which go with it. The way to them leads through it before, and to
    /// something else afterwards.
    fn detach(&self) -> Result<()> {
        let mut gone = HashSet::new();
        for Node { id, parent, point } in self.0.iter().rev() {
            if gone.contains(parent) {
                gone.insert(*id);
                continue;
            }
            match umount2(point, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH) {
                Ok(()) => drop(gone.insert(*id)),
                // Gone already, or covered: the next look shows it.
                Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(errno) => {
                    return Err(Error::io(format!("detach {}", point.display()), errno));
                }
            }
        }
        Ok(())
    }

    /// Takes them away; whether nothing is left for sure. The first error counts.
    fn unmount(&self, deadline: Instant) -> Result<bool> {
        let mut nothing_left = true;
        let mut first = Ok(());
        // What carries a mount that stays can only be busy.
        let mut carrying = HashSet::new();
        for Node { id, parent, point } in &self.0 {
            if carrying.contains(id) {
                carrying.insert(*parent);
                continue;
            }
            match unmount_one(point, deadline) {
                Ok(()) => {}
                // Gone, or covered by one that has come in the meantime.
                Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR) => nothing_left = false,
                Err(errno) => {
                    carrying.insert(*parent);
                    let failed = || Error::io(format!("unmount {}", point.display()), errno);
                    first = first.and_then(|()| Err(failed()));
                }
            }
        }
        first.map(|()| nothing_left)
    }
}

fn unmount_one(point: &Path, deadline: Instant) -> Result<(), Errno> {
    loop {
        match umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
            Err(Errno::EBUSY) if Instant::now() < deadline => std::thread::sleep(BUSY_PAUSE),
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(id: u64, parent: u64, point: &str) -> Node {
        Node { id, parent, point: point.into() }
    }

    fn order(nodes: &[Node]) -> Vec<u64> {
        Mounts::ordered(nodes.to_vec()).0.iter().map(|node| node.id).collect()
    }

    #[test]
    fn what_is_mounted_on_a_mount_comes_before_it() {
        let nodes =
            [node(1, 0, "/r"), node(2, 1, "/r/a"), node(3, 2, "/r/a/b"), node(4, 3, "/r/a/b")];
        assert_eq!(order(&nodes), [4, 3, 2, 1]);
    }

    #[test]
    fn what_covers_a_mount_comes_before_it() {
        // 3 covers all of 1, 4 covers the way to 2.
        assert_eq!(order(&[node(1, 0, "/r"), node(2, 1, "/r/a"), node(3, 1, "/r")]), [3, 2, 1]);
        assert_eq!(order(&[node(1, 0, "/r"), node(2, 1, "/r/a/b"), node(4, 1, "/r/a")]), [4, 2, 1]);
    }

    proptest! {
        #[test]
        fn any_table_is_ordered_without_loss(
            parents in proptest::collection::vec(0_u64..12, 0..12),
        ) {
            let numbered = parents.iter().zip(1..);
            let nodes: Vec<_> =
                numbered.map(|(&parent, id)| node(id, parent.min(id - 1), "/r")).collect();
            let order = order(&nodes);
            prop_assert_eq!(order.len(), nodes.len());
            let place = |id| order.iter().position(|&other| other == id);
            for Node { id, parent, .. } in &nodes {
                prop_assert!(*parent == 0 || place(*id) < place(*parent));
            }
        }
    }
}
