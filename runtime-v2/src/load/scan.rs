//! What is on disk: bundles, work directories that no bundle belongs to, and half-removed ones of
//! both.

use std::{collections::HashSet, fs, io, path::Path};

use crate::{
    config::Config,
    error::{Error, Result},
    id::Key,
};

/// All bundles below the state directory, in no order. Hidden directories are half-removed
/// bundles, and names that are no identifiers were not made by a manager.
pub(crate) fn bundles(state: &Path) -> Result<Vec<Key>> {
    match keys_below(state, visible) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other
            .map_err(|error| Error::io(format!("read state directory {}", state.display()), error)),
    }
}

/// Work directories without a bundle. Those that cannot be read stay for another time.
pub(super) async fn work_without_bundle(config: &Config, bundles: HashSet<Key>) -> Vec<Key> {
    let root = config.root.clone();
    let found = tokio::task::spawn_blocking(move || {
        let keys = keys_below(&root, visible).unwrap_or_default();
        keys.into_iter().filter(|key| !bundles.contains(key)).collect()
    });
    found.await.unwrap_or_default()
}

/// Whose removal may have been cut off: the ids of hidden directories.
pub(super) async fn half_removed(config: &Config) -> HashSet<Key> {
    let dirs = [config.state.clone(), config.root.clone()];
    let found = tokio::task::spawn_blocking(move || {
        dirs.iter().flat_map(|dir| keys_below(dir, hidden).unwrap_or_default()).collect()
    });
    found.await.unwrap_or_default()
}

/// Keys of the directories below those of the namespaces, as `id` reads their names.
fn keys_below(dir: &Path, id: fn(&str) -> Option<&str>) -> io::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for namespace in directories(dir)?.iter().filter_map(|name| visible(name)) {
        // One namespace that cannot be read is no reason to lose the others.
        match directories(&dir.join(namespace)) {
            Ok(names) => keys.extend(names.iter().filter_map(|name| key(namespace, id(name)?))),
            Err(error) => tracing::warn!(%namespace, %error, "a namespace cannot be read"),
        }
    }
    Ok(keys)
}

/// The id of a directory that was renamed for its removal.
fn hidden(name: &str) -> Option<&str> {
    name.strip_prefix('.')
}

/// Names that are not hidden.
fn visible(name: &str) -> Option<&str> {
    (!name.starts_with('.')).then_some(name)
}

fn key(namespace: &str, id: &str) -> Option<Key> {
    match Key::new(namespace, id) {
        Ok(key) => Some(key),
        Err(error) => {
            tracing::warn!(%error, "a directory that is no bundle is left alone");
            None
        }
    }
}

/// Names of the directories in `dir`.
fn directories(dir: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?.flatten();
    let found = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(found.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
