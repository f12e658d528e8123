//! From the name of a runtime to its shim binary.
//!
//! `io.containerd.runc.v2` is `containerd-shim-runc-v2`, looked up in the search path once and
//! remembered; an absolute path is taken as it is. (containerd core/runtime/v2/shim_manager.go.)

use std::{
    collections::HashMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use runtime_proto::errdefs::Code;

use crate::error::{Error, Result};

/// Finds shim binaries.
#[derive(Debug)]
pub(crate) struct Resolver {
    search: Vec<PathBuf>,
    /// A plain lock: never held over anything slower than a lookup in the map.
    found: Mutex<HashMap<String, PathBuf>>,
}

impl Resolver {
    /// Looks in these directories, in order.
    pub(crate) fn new(search: Vec<PathBuf>) -> Self {
        Self { search, found: Mutex::default() }
    }

    /// The shim binary of `runtime`, a dotted name or an absolute path.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed name, `NotFound` if there is no such binary.
    pub(crate) fn resolve(&self, runtime: &str) -> Result<PathBuf> {
        if Path::new(runtime).is_absolute() {
            return if is_executable(Path::new(runtime)) {
                Ok(runtime.into())
            } else {
                Err(Error::new(
                    Code::NotFound,
                    format!("shim binary {runtime:?} does not exist or is not executable"),
                ))
            };
        }
        let binary = binary_name(runtime)?;
        if let Some(path) = self.remembered(&binary) {
            return Ok(path);
        }
        let path = self.search(&binary).ok_or_else(|| {
            Error::new(
                Code::NotFound,
                format!("runtime {runtime:?} binary not installed {binary:?}"),
            )
        })?;
        self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(binary, path.clone());
        Ok(path)
    }

    /// A binary that was here once: where it is now, which after an upgrade may be elsewhere in the
    /// search path.
    pub(crate) fn present(&self, path: &Path) -> Option<PathBuf> {
        if path.exists() { Some(path.into()) } else { self.search(path.file_name()?) }
    }

    fn search(&self, name: impl AsRef<Path>) -> Option<PathBuf> {
        let mut places = self.search.iter().map(|dir| dir.join(name.as_ref()));
        places.find(|path| is_executable(path))
    }

    /// An earlier find, if it is still there: packages get removed under a running daemon.
    fn remembered(&self, binary: &str) -> Option<PathBuf> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get(binary).filter(|path| is_executable(path)).cloned()
    }
}

/// `io.containerd.runc.v2` -> `containerd-shim-runc-v2`: the last two words count.
fn binary_name(runtime: &str) -> Result<String> {
    let invalid =
        |why| Error::new(Code::InvalidArgument, format!("invalid runtime name {runtime:?}: {why}"));
    if runtime.is_empty() {
        return Err(invalid("it is empty"));
    }
    if runtime.contains('/') {
        return Err(invalid("a path must be absolute"));
    }
    let words: Vec<&str> = runtime.split('.').collect();
    match words.as_slice() {
        [first, .., name, version]
            if !first.is_empty() && !name.is_empty() && !version.is_empty() =>
        {
            Ok(format!("containerd-shim-{name}-{version}"))
        }
        [name, version] if !name.is_empty() && !version.is_empty() => {
            Ok(format!("containerd-shim-{name}-{version}"))
        }
        _ => Err(invalid("it must be like io.containerd.runc.v2")),
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn install(dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn names_become_binaries() {
        assert_eq!(binary_name("io.containerd.runc.v2").unwrap(), "containerd-shim-runc-v2");
        assert_eq!(binary_name("kata.v2").unwrap(), "containerd-shim-kata-v2");
        for bad in ["", "a", ".", "..", "...", ".a.b", "a.", "a.b.", "x/y.z", "./a.b"] {
            assert_eq!(binary_name(bad).unwrap_err().kind(), Code::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn the_first_directory_wins_and_a_vanished_find_is_looked_up_again() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let resolver = Resolver::new(vec![first.path().into(), second.path().into()]);
        let missing = resolver.resolve("io.containerd.x.v1").unwrap_err();
        assert_eq!(missing.kind(), Code::NotFound);
        assert!(missing.to_string().contains("containerd-shim-x-v1"), "{missing}");
        let later = install(second.path(), "containerd-shim-x-v1");
        assert_eq!(resolver.resolve("io.containerd.x.v1").unwrap(), later);
        let earlier = install(first.path(), "containerd-shim-x-v1");
        assert_eq!(resolver.resolve("io.containerd.x.v1").unwrap(), later, "remembered");
        fs::remove_file(&later).unwrap();
        assert_eq!(resolver.resolve("io.containerd.x.v1").unwrap(), earlier);
    }

    #[test]
    fn a_binary_that_was_moved_is_found_by_its_name() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let resolver = Resolver::new(vec![new.path().into()]);
        let here = install(old.path(), "containerd-shim-x-v1");
        let there = install(new.path(), "containerd-shim-x-v1");
        assert_eq!(resolver.present(&here), Some(here.clone()), "while it is there");
        fs::remove_file(&here).unwrap();
        assert_eq!(resolver.present(&here), Some(there));
        assert_eq!(resolver.present(&old.path().join("containerd-shim-y-v1")), None);
    }

    #[test]
    fn an_absolute_path_is_taken_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let resolver = Resolver::new(Vec::new());
        let path = install(dir.path(), "anything");
        assert_eq!(resolver.resolve(path.to_str().unwrap()).unwrap(), path);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(resolver.resolve(path.to_str().unwrap()).unwrap_err().kind(), Code::NotFound);
    }
}
