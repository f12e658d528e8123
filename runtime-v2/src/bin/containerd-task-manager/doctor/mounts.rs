//! Mounts below a state directory that no bundle belongs to.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use nix::mount::{MntFlags, umount2};

use super::{Finding, Kind, Remedy, Scene};
use crate::procfs::mounts_below;

/// Finds them; those that lie on top of others first.
pub(super) fn without_bundle(scene: &Scene) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for state in &scene.states {
        for point in mounts_below(state)?.into_iter().rev() {
            let Some(owner) = owner(state, &point) else { continue };
            let known = scene.bundles.iter().any(|found| found.bundle.path() == owner);
            if known || !scene.is_old(&owner) {
                continue;
            }
            let text = "this is mounted where no bundle is: it stays of one that was removed";
            let finding = Finding::new(Kind::StrayMount, point.display(), text);
            findings.push(finding.curable(Remedy::Mount(point)));
        }
    }
    Ok(findings)
}

/// The bundle that a path below a state directory lies in: two names down, and more below.
fn owner(state: &Path, point: &Path) -> Option<PathBuf> {
    let mut names = point.strip_prefix(state).ok()?.components();
    let (Component::Normal(namespace), Component::Normal(id)) = (names.next()?, names.next()?)
    else {
        return None;
    };
    names.next()?;
    Some(state.join(namespace).join(id))
}

/// Unmounts, unless it is in use.
pub(super) fn unmount(point: &Path) -> Result<(), String> {
    umount2(point, MntFlags::UMOUNT_NOFOLLOW).map_err(|errno| errno.desc().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_belongs_to_the_bundle_it_lies_in() {
        let owner = |point: &str| owner(Path::new("/s"), Path::new(point));
        assert_eq!(owner("/s/ns/id/rootfs"), Some("/s/ns/id".into()));
        assert_eq!(owner("/s/ns/.id/rootfs/proc"), Some("/s/ns/.id".into()));
        for none in ["/s", "/s/ns", "/s/ns/id", "/other/ns/id/rootfs"] {
            assert_eq!(owner(none), None, "{none}");
        }
    }
}
