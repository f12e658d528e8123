//! Putting the shim into a cgroup that the node's operator named.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use runtime_proto::errdefs::Code;

use super::layout::{self, CgroupMount};
use crate::error::{Error, Result};

/// Moves `pid` into the existing cgroup `path`: on a unified host into the one of that name, else
/// into it in every v1 hierarchy that has it.
///
/// # Errors
/// InvalidArgument for a path that could lead elsewhere, NotFound when no such cgroup exists.
pub fn add_pid(path: &str, pid: u32) -> Result<()> {
    let mounts = layout::cgroup_mounts()
        .map_err(|error| Error::io("read the cgroup mounts of this process", error))?;
    let unified = layout::is_unified(&mounts);
    let below = validate(path, unified)?;
    let same_kind = mounts.iter().filter(|mount| mount.is_v2() == unified);
    join_all(&directories(same_kind, below), pid)
        .map_err(|error| error.within(format_args!("move process {pid} into cgroup {path}")))
}

/// The path below a mount point. Absolute on a unified host, as containerd demands; v1 always took
/// relative ones as well.
pub(crate) fn validate(path: &str, unified: bool) -> Result<&Path> {
    let refuse =
        |why| Err(Error::new(Code::InvalidArgument, format!("cgroup path {path:?} {why}")));
    if unified && !path.starts_with('/') {
        return refuse("is not absolute");
    }
    let below = path.strip_prefix('/').unwrap_or(path);
    let plain = |part| matches!(part, Component::Normal(_));
    let clean = Path::new(below).components().all(plain)
        // What is left of "a//b" or "a/" when only its components are kept is shorter.
        && below == Path::new(below).components().collect::<PathBuf>().to_string_lossy();
    if !clean || below.contains('\0') {
        return refuse("is not clean");
    }
    Ok(Path::new(below))
}

fn directories<'a>(mounts: impl Iterator<Item = &'a CgroupMount>, below: &Path) -> Vec<PathBuf> {
    mounts
        .map(|mount| mount.mount_point.join(below))
        .filter(|directory| directory.is_dir())
        .collect()
}

fn join_all(directories: &[PathBuf], pid: u32) -> Result<()> {
    if directories.is_empty() {
        return Err(Error::new(Code::NotFound, "no such cgroup"));
    }
    for directory in directories {
        let file = directory.join("cgroup.procs");
        join(&file, pid).map_err(|error| Error::io(format!("write {}", file.display()), error))?;
    }
    Ok(())
}

fn join(file: &Path, pid: u32) -> io::Result<()> {
    // No creation: a directory without this file is no cgroup.
    let mut procs = fs::OpenOptions::new().write(true).open(file)?;
    io::Write::write_all(&mut procs, pid.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_lead_elsewhere_are_refused() {
        for path in ["/..", "/a/../b", "/a/./b", "//a", "/a/", "/a//b", "/a\0b", "../a", "."] {
            for unified in [true, false] {
                let error = validate(path, unified).unwrap_err();
                assert_eq!(error.kind(), Code::InvalidArgument, "{path:?}");
                assert!(error.to_string().contains(&format!("{path:?}")), "{error}");
            }
        }
        assert!(validate("a/b", true).is_err());
        assert_eq!(validate("a/b", false).unwrap(), Path::new("a/b"));
        assert_eq!(validate("/a/b.slice", true).unwrap(), Path::new("a/b.slice"));
        assert_eq!(validate("/", true).unwrap(), Path::new(""));
    }

    #[test]
    fn a_cgroup_that_does_not_exist_is_named() {
        let error = add_pid("/no/such-cgroup", 1).unwrap_err();
        assert_eq!(error.kind(), Code::NotFound);
        assert!(error.to_string().contains("/no/such-cgroup"), "{error}");
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let directories = [directory.path().to_owned()];
        assert_eq!(join_all(&directories, 1).unwrap_err().kind(), Code::NotFound);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        fs::write(directory.path().join("cgroup.procs"), "").unwrap();
        join_all(&directories, 77).unwrap();
        assert_eq!(fs::read(directory.path().join("cgroup.procs")).unwrap(), b"77");
    }
}
