//! What is on disk: bundles, and work directories that no bundle belongs to.

use std::{collections::HashSet, fs, io, path::Path};

use crate::{
    config::Config,
    error::{Error, Result},
    id::Key,
};

/// All bundles below the state directory, in no order. Hidden directories are half-removed
/// bundles, and names that are no identifiers were not made by a manager.
pub(crate) fn bundles(state: &Path) -> Result<Vec<Key>> {
    match keys_below(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other
            .map_err(|error| Error::io(format!("read state directory {}", state.display()), error)),
    }
}

/// Work directories without a bundle. Those that cannot be read stay for another time.
pub(super) async fn work_without_bundle(config: &Config, bundles: HashSet<Key>) -> Vec<Key> {
    let root = config.root.clone();
    let found = tokio::task::spawn_blocking(move || {
        let keys = keys_below(&root).unwrap_or_default();
        keys.into_iter().filter(|key| !bundles.contains(key)).collect()
    });
    found.await.unwrap_or_default()
}

fn keys_below(dir: &Path) -> io::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for namespace in directories(dir)? {
        // One namespace that cannot be read is no reason to lose the others.
        match directories(&dir.join(&namespace)) {
            Ok(ids) => keys.extend(ids.into_iter().filter_map(|id| key(&namespace, &id))),
            Err(error) => tracing::warn!(%namespace, %error, "a namespace cannot be read"),
        }
    }
    Ok(keys)
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

/// Names of the directories in `dir` that are not hidden.
fn directories(dir: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?.flatten();
    let visible = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(visible
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect())
}
