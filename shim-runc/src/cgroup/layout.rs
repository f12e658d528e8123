//! Where a process's cgroups are in the filesystem: its memberships laid over the mount table.
//!
//! No path is assumed. A hierarchy may be mounted anywhere, more than once, and with a root that is
//! not the hierarchy's own (a bind mount into a container shows `/docker/<id>` as its root).

use std::io;
use std::path::{Component, Path, PathBuf};

use super::membership::Membership;
use crate::mount::mountinfo::{self, Entry, OWN_MOUNTS};

/// Controllers that account or limit resources. One of them mounted as v1 makes the host a v1
/// host, whatever v2 tree stands beside it: that is where runtimes put a container's limits.
/// Others (`net_cls`, `hugetlb`, …) are mounted as v1 on unified hosts too, for tools of their own.
const DECIDING: [&str; 6] = ["memory", "cpu", "cpuacct", "pids", "blkio", "freezer"];

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupMount {
    /// Options of a v1 hierarchy, its controllers among them; `None` for v2.
    v1_options: Option<Vec<String>>,
    /// The cgroup that the mount shows as its top directory.
    root: PathBuf,
    /// Where it is mounted.
    pub(super) mount_point: PathBuf,
}

impl CgroupMount {
    fn parse(entry: &Entry<'_>) -> Option<Self> {
        let v1_options = match entry.fs_type() {
            b"cgroup" => {
                let options = entry.super_options();
                Some(options.map(|option| String::from_utf8_lossy(option).into_owned()).collect())
            }
            b"cgroup2" => None,
            _ => return None,
        };
        Some(Self { v1_options, root: entry.root(), mount_point: entry.mount_point() })
    }

    /// Whether this is the v2 hierarchy.
    pub(super) fn is_v2(&self) -> bool {
        self.v1_options.is_none()
    }

    /// Whether this v1 hierarchy has one of the controllers that make a host a v1 host.
    fn decides(&self) -> bool {
        DECIDING.iter().any(|controller| self.has(controller))
    }

    /// Whether this v1 hierarchy has a controller.
    pub(super) fn has(&self, controller: &str) -> bool {
        self.v1_options.iter().flatten().any(|option| option == controller)
    }

    fn shows(&self, membership: &Membership) -> bool {
        match membership.is_v2() {
            true => self.is_v2(),
            false => membership.controllers.iter().any(|controller| self.has(controller)),
        }
    }

    /// The directory of the cgroup `path`, if it lies within what this mount shows.
    fn directory(&self, path: &Path) -> Option<PathBuf> {
        // Both may begin with `..` when they are outside of this process's cgroup namespace;
        // then they are comparable only as far as they are equal.
        let below = path.strip_prefix(&self.root).ok()?;
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| self.mount_point.components().chain(below.components()).collect())
    }
}

/// The cgroup mounts that this process sees.
pub(super) fn cgroup_mounts() -> io::Result<Vec<CgroupMount>> {
    let mut mounts = Vec::new();
    mountinfo::for_each(Path::new(OWN_MOUNTS), |entry| mounts.extend(CgroupMount::parse(&entry)))?;
    Ok(mounts)
}

/// Whether containers of this host live in the v2 hierarchy alone.
pub(super) fn is_unified(mounts: &[CgroupMount]) -> bool {
    mounts.iter().any(CgroupMount::is_v2) && !mounts.iter().any(CgroupMount::decides)
}

/// The directories of one process's cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layout {
    /// One directory for each v1 hierarchy, each with its controllers.
    V1(Vec<(Vec<String>, PathBuf)>),
    /// The one directory, and the top of the tree it is in.
    Unified {
        /// Mount point of the hierarchy.
        top: PathBuf,
        /// The cgroup.
        dir: PathBuf,
    },
}

impl Layout {
    /// Finds where `memberships` are mounted; `None` if nowhere that this process can see.
    pub(super) fn find(memberships: &[Membership], mounts: &[CgroupMount]) -> Option<Self> {
        let locate = |membership: &Membership| {
            let mut shown = mounts.iter().filter(|mount| mount.shows(membership));
            shown.find_map(|mount| Some((mount, mount.directory(&membership.path)?)))
        };
        if is_unified(mounts) {
            let (mount, dir) = memberships.iter().find(|line| line.is_v2()).and_then(locate)?;
            return Some(Self::Unified { top: mount.mount_point.clone(), dir });
        }
        let directories: Vec<_> = memberships
            .iter()
            .filter(|membership| !membership.is_v2())
            .filter_map(|membership| Some((membership.controllers.clone(), locate(membership)?.1)))
            .collect();
        (!directories.is_empty()).then_some(Self::V1(directories))
    }

    /// The directory that has a controller's files; in v2 every controller has the same.
    pub(super) fn controller(&self, name: &str) -> Option<&Path> {
        match self {
            Self::V1(directories) => directories
                .iter()
                .find(|(controllers, _)| controllers.iter().any(|controller| controller == name))
                .map(|(_, directory)| directory.as_path()),
            Self::Unified { dir, .. } => Some(dir),
        }
    }

    /// Whether any of the directories is still there.
    pub(super) fn exists(&self) -> bool {
        match self {
            Self::V1(directories) => directories.iter().any(|(_, directory)| directory.is_dir()),
            Self::Unified { dir, .. } => dir.is_dir(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::membership::parse;
    use super::*;

    fn mounts(table: &str) -> Vec<CgroupMount> {
        let entries = table.lines().filter_map(|line| Entry::parse(line.as_bytes()));
        entries.filter_map(|entry| CgroupMount::parse(&entry)).collect()
    }

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    fn directory(layout: &Layout, controller: &str) -> Option<String> {
        layout.controller(controller).map(|path| path.display().to_string())
    }

    #[test]
    fn a_hybrid_host_is_a_v1_host() {
        let lines = parse(b"5:cpu,cpuacct:/c/1\n4:memory:/x\n2:name=systemd:/s\n0::/y\n");
        let layout = Layout::find(&lines, &mounts(HYBRID)).unwrap();
        assert_eq!(directory(&layout, "memory").unwrap(), "/sys/fs/cgroup/memory/x");
        assert_eq!(directory(&layout, "cpuacct").unwrap(), "/sys/fs/cgroup/cpu,cpuacct/c/1");
        assert_eq!(directory(&layout, "name=systemd").unwrap(), "/sys/fs/cgroup/systemd/s");
        assert_eq!(directory(&layout, "pids"), None);
    }

    #[test]
    fn a_unified_host_has_one_directory() {
        let layout = Layout::find(&parse(b"0::/a:b/c\n"), &mounts(UNIFIED)).unwrap();
        let (top, dir) = ("/sys/fs/cgroup".into(), "/sys/fs/cgroup/a:b/c".into());
        assert_eq!(layout, Layout::Unified { top, dir });
        assert_eq!(directory(&layout, "memory").unwrap(), "/sys/fs/cgroup/a:b/c");
    }

    #[test]
    fn a_v1_mount_for_other_tools_leaves_a_host_unified() {
        let table = format!("{UNIFIED}\n50 23 0:50 / /run/vpn rw - cgroup net_cls rw,net_cls");
        let layout = Layout::find(&parse(b"1:net_cls:/\n0::/a\n"), &mounts(&table)).unwrap();
        assert_eq!(directory(&layout, "memory").unwrap(), "/sys/fs/cgroup/a");
    }

    #[test]
    fn mounts_elsewhere_and_bind_mounted_roots_are_followed() {
        let table = r"35 31 0:32 /docker/xyz /mnt/my\040cg/memory rw - cgroup cgroup rw,memory";
        let find = |lines: &[u8]| Layout::find(&parse(lines), &mounts(table));
        let layout = find(b"4:memory:/docker/xyz/c1\n").unwrap();
        assert_eq!(directory(&layout, "memory").unwrap(), "/mnt/my cg/memory/c1");
        let layout = find(b"4:memory:/docker/xyz\n").unwrap();
        assert_eq!(directory(&layout, "memory").unwrap(), "/mnt/my cg/memory");
        assert_eq!(find(b"4:memory:/docker/xyzzy\n"), None);
        assert_eq!(find(b"4:memory:/other\n"), None);
    }

    #[test]
    fn a_later_mount_is_used_when_the_first_does_not_show_the_cgroup() {
        let table = format!("20 1 0:32 /docker/a /first rw - cgroup cgroup rw,memory\n{HYBRID}");
        let layout = Layout::find(&parse(b"4:memory:/x\n"), &mounts(&table)).unwrap();
        assert_eq!(directory(&layout, "memory").unwrap(), "/sys/fs/cgroup/memory/x");
    }

    #[test]
    fn cgroups_outside_of_the_namespace_are_not_guessed() {
        let find = |root: &str, lines: &[u8]| {
            let table = format!("35 31 0:32 {root} /cg rw - cgroup2 cgroup2 rw");
            Layout::find(&parse(lines), &mounts(&table))
        };
        assert_eq!(find("/", b"0::/../other\n"), None);
        assert_eq!(find("/../..", b"0::/../other\n"), None);
        let layout = find("/..", b"0::/../other\n").unwrap();
        assert_eq!(directory(&layout, "memory").unwrap(), "/cg/other");
    }

    #[test]
    fn without_lines_or_mounts_there_is_no_layout() {
        assert_eq!(Layout::find(&[], &mounts(HYBRID)), None);
        assert_eq!(Layout::find(&parse(b"0::/y\n"), &mounts(HYBRID)), None);
        assert_eq!(Layout::find(&parse(b"4:memory:/x\n0::/y\n"), &[]), None);
    }
}
