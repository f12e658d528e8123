//! Unix sockets: the files, and what the kernel says is bound.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use super::{Item, Kind, Scope};

/// Socket files of the scope, and bound sockets whose name shows the token: an abstract one has no file, and the file of
/// another may be gone while a process still listens.
pub(super) fn find(scope: &Scope) -> Vec<Item> {
    let is_socket = |path: &&std::path::PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
    };
    let files = scope.sockets.iter().filter(is_socket).map(|path| path.display().to_string());
    let mut found: Vec<Item> = files.map(|name| item(name, "file")).collect();
    found.extend(bound().into_iter().filter(|name| is_of(scope, name)).map(|name| {
        let what = if name.starts_with('@') { "abstract" } else { "bound" };
        item(name, what)
    }));
    found
}

fn is_of(scope: &Scope, name: &str) -> bool {
    if scope.token.is_some() {
        return scope.claims(name) || scope.sockets.iter().any(|path| path.as_os_str() == name);
    }
    name.contains("containerd") || name.contains("shim")
}

/// Every bound name: the eighth field, where there is one.
fn bound() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names: Vec<String> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(7).map(str::to_owned))
        .collect();
    // Accepted connections carry the listener's name too.
    names.sort_unstable();
    names.dedup();
    names
}

fn item(name: String, what: &str) -> Item {
    Item { kind: Kind::Socket, name, detail: what.to_owned() }
}
