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
pub(crate) struct CgroupMount {
    /// Options of a v1 hierarchy, its controllers among them; `None` for v2.
    v1_options: Option<Vec<String>>,
    /// The cgroup that the mount shows as its top directory.
    root: PathBuf,
    /// Where it is mounted.
    pub(crate) mount_point: PathBuf,
}

impl CgroupMount {
    pub(crate) fn parse(entry: &Entry<'_>) -> Option<Self> {
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
pub(crate) fn is_unified(mounts: &[CgroupMount]) -> bool {
    mounts.iter().any(CgroupMount::is_v2) && !mounts.iter().any(CgroupMount::decides)
}

/// A process's cgroup in one v1 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct V1Group {
    /// The controllers of the hierarchy, or its name.
    pub(crate) controllers: Vec<String>,
    /// The cgroup.
    pub(crate) directory: PathBuf,
    /// Whether it is the top of what is mounted: where processes are that nobody put elsewhere.
    pub(crate) is_top: bool,
}

/// The directories of one process's cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One for each v1 hierarchy.
    V1(Vec<V1Group>),
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
    pub(crate) fn find(memberships: &[Membership], mounts: &[CgroupMount]) -> Option<Self> {
        let locate = |membership: &Membership| {
            let mut shown = mounts.iter().filter(|mount| mount.shows(membership));
            shown.find_map(|mount| Some((mount, mount.directory(&membership.path)?)))
        };
        if is_unified(mounts) {
            let (mount, dir) = memberships.iter().find(|line| line.is_v2()).and_then(locate)?;
            return Some(Self::Unified { top: mount.mount_point.clone(), dir });
        }
        let group = |membership: &Membership| {
            let (mount, directory) = locate(membership)?;
            let is_top = directory == mount.mount_point;
            Some(V1Group { controllers: membership.controllers.clone(), directory, is_top })
        };
        let groups: Vec<_> = memberships.iter().filter(|m| !m.is_v2()).filter_map(group).collect();
        (!groups.is_empty()).then_some(Self::V1(groups))
    }

    /// The directory that has a controller's files; in v2 every controller has the same.
    pub(super) fn controller(&self, name: &str) -> Option<&Path> {
        match self {
            Self::V1(groups) => groups
                .iter()
                .find(|group| group.controllers.iter().any(|controller| controller == name))
                .map(|group| group.directory.as_path()),
            Self::Unified { dir, .. } => Some(dir),
        }
    }

    /// Whether the cgroup is still there: any directory that was made for it, or, for a process
    /// that was never given one, where it was found.
    pub(super) fn exists(&self) -> bool {
        match self {
            Self::V1(groups) => {
                let own = groups.iter().any(|group| !group.is_top);
                groups.iter().any(|group| group.is_top != own && group.directory.is_dir())
            }
            Self::Unified { dir, .. } => dir.is_dir(),
        }
    }
}

#[cfg(test)]
impl Layout {
    /// Hierarchies of one controller each, with their cgroup in the same directory.
    pub(super) fn v1(controllers: &[&str], directory: &Path) -> Self {
        let group = |&controller: &&str| V1Group {
            controllers: vec![controller.to_owned()],
            directory: directory.to_owned(),
            is_top: false,
        };
        Self::V1(controllers.iter().map(group).collect())
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
    fn a_cgroup_exists_as_long_as_a_directory_of_its_own() {
        let top = tempfile::tempdir().unwrap();
        let (own, top) = (top.path().join("own"), top.path().to_owned());
        std::fs::create_dir(&own).unwrap();
        let group = |directory: &PathBuf, is_top| V1Group {
            controllers: vec!["pids".into()],
            directory: directory.clone(),
            is_top,
        };
        let layout = Layout::V1(vec![group(&top, true), group(&own, false)]);
        assert!(layout.exists());
        std::fs::remove_dir(&own).unwrap();
        assert!(!layout.exists(), "the top of a hierarchy is nobody's own");
        assert!(Layout::V1(vec![group(&top, true)]).exists(), "but some are nowhere else");
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
