//! Which shims this machine has.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Every shim at hand, by what it says of its version; the own one comes by `SHIM_RUNC`.
pub(crate) fn shims() -> BTreeMap<String, PathBuf> {
    let deps = env::var_os("DEPS_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.deps"), PathBuf::from);
    let published = deps.join("rust-extensions/bin/containerd-shim-runc-v2-rs");
    if !published.exists() {
        eprintln!("skipped: the published Rust shim, which is not at {}", published.display());
    }
    let series = fs::read_dir(deps).into_iter().flatten().flatten().map(|entry| entry.path());
    let names = ["containerd-shim-runc-v2", "containerd-shim-runc-v1"];
    let fetched = series.flat_map(|dir| names.map(|name| dir.join(name)));
    let installed = names.into_iter().filter_map(find);
    let own = env::var_os("SHIM_RUNC").map(PathBuf::from);
    let mut found = BTreeMap::new();
    for path in own.into_iter().chain([published]).chain(fetched).chain(installed) {
        let Ok(path) = path.canonicalize() else { continue };
        let Ok(said) = Command::new(&path).arg("-v").output() else { continue };
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // The first line may be the path.
        let said = String::from_utf8_lossy(&said.stdout).lines().skip(1).collect::<String>();
        found.entry(format!("{name} {said}")).or_insert(path);
    }
    found
}

/// An executable in `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists())
}
