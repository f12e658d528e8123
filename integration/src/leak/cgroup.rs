//! Cgroups in every hierarchy that is mounted: v1, named ones, and v2.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Item, Kind, Scope};
use crate::paths::entries;

/// Directories of the scope, parents before children.
pub(super) fn find_dirs(scope: &Scope) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in hierarchies() {
        walk(&root, &root, scope, &mut found);
    }
    found
}

pub(super) fn find(scope: &Scope) -> Vec<Item> {
    // A namespace's own cgroup, parent of its containers', is made by the runtimes and removed by nobody.
    let is_parent = |dir: &PathBuf| {
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
        scope.token.is_some() && name == scope.token
    };
    let item = |dir: PathBuf| {
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        Item {
            kind: Kind::Cgroup,
            name: dir.display().to_string(),
            detail: format!("{} processes", procs.lines().count()),
        }
    };
    find_dirs(scope).into_iter().filter(|dir| !is_parent(dir)).map(item).collect()
}

/// Where hierarchies are mounted: the file system type stands behind the lone dash.
fn hierarchies() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let root = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        // A bind of a part of a hierarchy, as containers have it, would show everything twice.
        let mut fields = mount.split(' ').skip(3);
        let (inner, point) = (fields.next()?, fields.next()?);
        (filesystem.starts_with("cgroup") && inner == "/").then(|| PathBuf::from(point))
    };
    table.lines().filter_map(root).collect()
}

fn walk(root: &Path, dir: &Path, scope: &Scope, found: &mut Vec<PathBuf>) {
    for child in entries(dir).filter(|path| path.is_dir() && !path.is_symlink()) {
        // The mount point itself may well contain the token of whoever mounted it.
        let inner = child.strip_prefix(root).unwrap_or(&child).display().to_string();
        if scope.claims(&inner) {
            found.push(child.clone());
        }
        walk(root, &child, scope, found);
    }
}
