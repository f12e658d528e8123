//! Files, directories and fifos in the places where nothing should stay.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::{Item, Kind, SHARED_PLACES, Scope};
use crate::paths::entries;

/// Everything in the scope's own places, and what carries its token in the shared ones.
///
/// Directories are not followed into below a trace: one item per leftover is enough to name it.
pub(super) fn find(scope: &Scope) -> Vec<Item> {
    let mut found: Vec<Item> = scope
        .places
        .iter()
        .flat_map(|place| entries(place))
        .filter_map(|path| item(&path))
        .collect();
    if scope.token.is_some() {
        let shared = SHARED_PLACES.iter().map(Path::new);
        found.extend(shared.flat_map(claimed_in(scope)).filter_map(|path| item(&path)));
    }
    found
}

/// Entries of a shared place, or one level below (`/run/containerd/runc/<namespace>/<id>`), that carry the token.
///
/// The namespace's own directory is made by the OCI runtimes and removed by nobody: it counts only by what is in it; and
/// crun keeps an empty directory there, whose name begins with a dot, as no container's does.
fn claimed_in(scope: &Scope) -> impl Fn(&Path) -> Vec<PathBuf> {
    let is_visible = |path: &PathBuf| {
        !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    };
    move |place| {
        let mut found = Vec::new();
        for path in entries(place) {
            if path.is_dir() && !path.is_symlink() {
                let claimed = |inner: &PathBuf| scope.claims(&inner.display().to_string());
                found.extend(entries(&path).filter(is_visible).filter(claimed));
            } else if scope.claims(&path.display().to_string()) {
                found.push(path);
            }
        }
        found
    }
}

fn item(path: &Path) -> Option<Item> {
    let kind = fs::symlink_metadata(path).ok()?.file_type();
    let (kind, detail) = match kind {
        kind if kind.is_fifo() => (Kind::Fifo, "fifo"),
        kind if kind.is_socket() => (Kind::Socket, "file"),
        kind if kind.is_dir() => (Kind::File, "directory"),
        _ => (Kind::File, "file"),
    };
    Some(Item { kind, name: path.display().to_string(), detail: detail.to_owned() })
}
