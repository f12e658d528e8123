//! Controllers of the unified hierarchy: a cgroup has those that all cgroups above it hand down.

use std::fs;
use std::path::Path;

use super::Cgroup;
use super::layout::Layout;
use super::text;

impl Cgroup {
    /// Hands every available controller down to this cgroup, so that its metrics are complete.
    ///
    /// As far as it goes: some controllers cannot be handed down (`cpu` while a realtime process
    /// is in the way, any of them into a threaded or delegated subtree), and a container works
    /// without. On a v1 host there is nothing to do.
    pub fn enable_controllers(&self) {
        if let Layout::Unified { top, dir } = self.layout() {
            let below_top = dir.ancestors().skip(1).filter(|above| above.starts_with(top));
            let mut above: Vec<_> = below_top.collect();
            above.reverse();
            above.into_iter().for_each(hand_down);
        }
    }
}

fn hand_down(directory: &Path) {
    let read = |name: &str| fs::read(directory.join(name)).unwrap_or_default();
    let (available, enabled) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    for controller in missing(&available, &enabled) {
        // One write each: a write of several is refused as a whole if one of them is.
        let file = directory.join("cgroup.subtree_control");
        if let Err(error) = fs::write(&file, [b"+", controller].concat()) {
            let controller = String::from_utf8_lossy(controller);
            tracing::debug!(file = %file.display(), %controller, %error, "controller not enabled");
        }
    }
}

fn missing<'a>(available: &'a [u8], enabled: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    text::words(available).filter(|&controller| !text::words(enabled).any(|e| e == controller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_available_and_not_enabled_is_missing() {
        let found: Vec<_> = missing(b"cpuset cpu io memory\n", b"cpu memory\n").collect();
        assert_eq!(found, [&b"cpuset"[..], b"io"]);
        assert_eq!(missing(b"", b"cpu").count(), 0);
    }

    #[test]
    fn every_cgroup_above_is_written_and_the_cgroup_itself_is_not() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("top");
        let dir = top.join("a/b");
        fs::create_dir_all(&dir).unwrap();
        for directory in [root.path(), &top, &top.join("a"), &dir] {
            fs::write(directory.join("cgroup.controllers"), "pids\n").unwrap();
            fs::write(directory.join("cgroup.subtree_control"), "\n").unwrap();
        }
        Cgroup::from(Layout::Unified { top: top.clone(), dir: dir.clone() }).enable_controllers();
        let control = |dir: &Path| fs::read(dir.join("cgroup.subtree_control")).unwrap();
        assert_eq!(control(&top), b"+pids");
        assert_eq!(control(&top.join("a")), b"+pids");
        assert_eq!(control(&dir), b"\n");
        assert_eq!(control(root.path()), b"\n", "above the mount is no cgroup");
    }
}
