//! Where the binaries under test and the parts from other projects are.
//!
//! The Makefile says it by environment variables; without them everything is found where `make build` and `make deps`
//! put it, so that a plain `cargo test` does what `make test` does.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// The directory of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The shim under test: `SHIM_RUNC`, or the release build of this workspace.
///
/// # Errors
/// When there is none, with the command that builds it.
pub fn shim() -> Result<PathBuf> {
    named("SHIM_RUNC", "containerd-shim-runc-v2")
}

/// The task manager under test: `CTM`, or the release build of this workspace.
///
/// # Errors
/// When there is none, with the command that builds it.
pub fn manager() -> Result<PathBuf> {
    named("CTM", "containerd-task-manager")
}

/// A stand-in that this package builds beside its tests.
///
/// # Errors
/// When it has not been built.
pub fn stand_in(name: &str) -> Result<PathBuf> {
    let variable = name.to_uppercase();
    if let Some(path) = env::var_os(&variable) {
        return existing(PathBuf::from(path), &format!("{variable} names it"));
    }
    // Tests run from target/<profile>/deps/, the demo from target/<profile>/: the stand-ins are in the latter.
    let me = env::current_exe()?;
    let built = me.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.exists());
    built.ok_or_else(|| {
        Failure::new(format!("{name} is not built: cargo build -p integration --bin {name}"))
    })
}

/// Where builds go.
#[must_use]
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// `.deps/` of the workspace: what `make deps` brought in.
#[must_use]
pub fn deps() -> PathBuf {
    env::var_os("DEPS_DIR").map_or_else(|| workspace().join(".deps"), PathBuf::from)
}

/// The series of the containerd that `make containerd` builds; it has `ctr` beside it, and no Go shim.
pub const BUILT: &str = "2.4";

/// The directory with `containerd`, `ctr` and the Go shim of a series, by `make deps`'s name of it ("1.6", "1.7", "2"),
/// or [`BUILT`].
#[must_use]
pub fn containerd(series: &str) -> Option<PathBuf> {
    let dir = if series == BUILT {
        let named = env::var_os("CONTAINERD_BUILD").map(PathBuf::from);
        named.unwrap_or_else(|| workspace().join("target/containerd/bin"))
    } else {
        deps().join(format!("containerd-{series}"))
    };
    dir.join("containerd").exists().then_some(dir)
}

/// Every `runc` or `crun` at hand, oldest first, with its version.
#[must_use]
pub fn runtimes(name: &str) -> Vec<(String, PathBuf)> {
    let prefix = format!("{name}-");
    let mut found: Vec<(String, PathBuf)> = entries(&deps())
        .filter_map(|dir| {
            let version = dir.file_name()?.to_str()?.strip_prefix(&prefix)?.to_owned();
            Some((version, dir.join(name))).filter(|(_, binary)| binary.exists())
        })
        .collect();
    found.sort_by_key(|(version, _)| {
        version.split('.').map(|n| n.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>()
    });
    found
}

/// The `runc` that tests use when they care about no particular one: `RUNC`, or the newest at hand.
///
/// # Errors
/// When there is none.
pub fn runc() -> Result<PathBuf> {
    default_runtime("RUNC", "runc")
}

/// The `crun` that tests use when they care about no particular one: `CRUN`, or the newest at hand.
///
/// # Errors
/// When there is none.
pub fn crun() -> Result<PathBuf> {
    default_runtime("CRUN", "crun")
}

/// The static busybox that root filesystems are made of.
///
/// # Errors
/// When there is none.
pub fn busybox() -> Result<PathBuf> {
    match env::var_os("BUSYBOX") {
        Some(path) => existing(PathBuf::from(path), "BUSYBOX names it"),
        None => existing(PathBuf::from("/bin/busybox"), "make deps installs it"),
    }
}

/// criu, where it is installed.
#[must_use]
pub fn criu() -> Option<PathBuf> {
    let dirs = ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"];
    dirs.iter().map(|dir| Path::new(dir).join("criu")).find(|path| path.exists())
}

/// The entries of a directory; none if it cannot be read, since looking for things is what this is for.
pub(crate) fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn named(variable: &str, binary: &str) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return existing(PathBuf::from(path), &format!("{variable} names it"));
    }
    let target = target();
    // The release build names its target triple, because it is linked statically.
    let built = entries(&target)
        .map(|dir| dir.join("release").join(binary))
        .chain([target.join("release").join(binary)])
        .find(|path| path.exists());
    built.ok_or_else(|| {
        Failure::new(format!("{binary} is not built: make build, or set {variable}"))
    })
}

fn default_runtime(variable: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return existing(PathBuf::from(path), &format!("{variable} names it"));
    }
    let newest = runtimes(name).pop().map(|(_, path)| path);
    newest.ok_or_else(|| Failure::new(format!("no {name} in {}: make deps", deps().display())))
}

fn existing(path: PathBuf, why: &str) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    Err(Failure::new(format!("{} does not exist ({why})", path.display())))
}

/// Is the shim under test containerd's own? Its known departures from what is promised here are then not tested.
#[must_use]
pub fn is_go_shim() -> bool {
    let output = shim().and_then(|shim| Ok(std::process::Command::new(shim).arg("-v").output()?));
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Go version: go"))
}
