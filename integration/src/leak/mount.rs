//! Mounts and loop devices.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Item, Kind, Scope};
use crate::paths::entries;

/// One line of mountinfo.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u32,
    pub(super) point: PathBuf,
    line: String,
}

impl Mount {
    /// `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw`; blanks in paths are octal.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let point = fields.nth(3)?.replace("\\040", " ");
        Some(Self { id, point: PathBuf::from(point), line: line.to_owned() })
    }
}

/// Mounts of the scope in this mount namespace, in the order in which they were made.
pub(super) fn find_mounts(scope: &Scope) -> Vec<Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter(|line| scope.claims(line)).filter_map(Mount::parse).collect()
}

pub(super) fn find(scope: &Scope) -> Vec<Item> {
    let item = |mount: Mount| Item {
        kind: Kind::Mount,
        name: format!("{} on {}", mount.id, mount.point.display()),
        detail: mount.line,
    };
    find_mounts(scope).into_iter().map(item).collect()
}

/// Loop devices whose backing file belongs to the scope.
pub(super) fn find_loops(scope: &Scope) -> Vec<Item> {
    let backing = |dir: PathBuf| {
        let file = fs::read_to_string(dir.join("loop/backing_file")).ok()?;
        let name = dir.file_name()?.to_str()?.to_owned();
        scope.claims(&file).then(|| Item { kind: Kind::Loop, name, detail: file.trim().to_owned() })
    };
    entries(Path::new("/sys/block")).filter_map(backing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_is_read() {
        let line = "36 35 98:0 / /a\\040b rw,noatime master:1 - ext3 /dev/root rw";
        let mount = Mount::parse(line).expect("a valid line");
        assert_eq!(mount.id, 36);
        assert_eq!(mount.point, Path::new("/a b"));
        assert_eq!(Mount::parse("short"), None);
    }
}
