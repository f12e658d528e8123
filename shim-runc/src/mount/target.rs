//! Finding a path inside of a root filesystem without ever leaving it.
//!
//! The tree may belong to an image, and another container may be changing it at this moment. So
//! every step is taken from an open directory to one name in it, symbolic links are followed by
//! hand with the root as the place they start from, and `..` goes back the way that was come.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};

/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// Opens `path` as a process would see it whose root is `root`; what is mounted there is crossed.
///
/// The descriptor only names a place (`O_PATH`); nothing can be read or written by it.
pub(super) fn open_in_root(root: &Path, path: &str) -> Result<OwnedFd, Errno> {
    // What is mounted on what a link leads to would be found by nobody who looks for mounts on the root.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let root = open(root, flags, Mode::empty())?;
    let mut way: Vec<OwnedFd> = Vec::new();
    let mut ahead = reversed(Path::new(path));
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if name == OsStr::new("..") {
            way.pop();
            continue;
        }
        let here = way.last().unwrap_or(&root);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let next = openat(here.as_fd(), name.as_os_str(), flags, Mode::empty())?;
        if !is_link(&next)? {
            way.push(next);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::ELOOP);
        }
        let link = PathBuf::from(readlinkat(next.as_fd(), "")?);
        if link.is_absolute() {
            way.clear();
        }
        ahead.extend(reversed(&link));
    }
    Ok(way.pop().unwrap_or(root))
}

/// A path by which system calls without a variant for descriptors reach what `fd` names.
pub(super) fn path_of(fd: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

fn is_link(fd: &OwnedFd) -> Result<bool, Errno> {
    let kind = SFlag::from_bits_truncate(fstat(fd)?.st_mode) & SFlag::S_IFMT;
    Ok(kind == SFlag::S_IFLNK)
}

/// The names in a path, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    let mut names: Vec<_> = names.collect();
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    /// `root/` with things in it, and a `secret` beside it.
    fn tree() -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("root/a/b")).unwrap();
        fs::create_dir(top.path().join("secret")).unwrap();
        fs::write(top.path().join("root/a/file"), "").unwrap();
        top
    }

    fn resolve(top: &tempfile::TempDir, path: &str) -> Result<PathBuf, Errno> {
        let root = top.path().join("root");
        let found = fs::read_link(path_of(&open_in_root(&root, path)?)).unwrap();
        Ok(found.strip_prefix(fs::canonicalize(root).unwrap()).expect("inside").to_owned())
    }

    #[test]
    fn plain_paths_are_found() {
        let top = tree();
        for (path, found) in [("", ""), ("/", ""), ("a/b", "a/b"), ("/a/file", "a/file")] {
            assert_eq!(resolve(&top, path).unwrap(), Path::new(found), "{path:?}");
        }
        assert_eq!(resolve(&top, "a/none"), Err(Errno::ENOENT));
        assert_eq!(resolve(&top, "a/file/x"), Err(Errno::ENOTDIR));
    }

    #[test]
    fn dots_stop_at_the_root() {
        let top = tree();
        assert_eq!(resolve(&top, "../../..").unwrap(), Path::new(""));
        assert_eq!(resolve(&top, "../a/./b/../b").unwrap(), Path::new("a/b"));
        assert_eq!(resolve(&top, "../secret"), Err(Errno::ENOENT));
    }

    #[test]
    fn links_lead_to_where_they_would_from_inside() {
        let top = tree();
        let root = top.path().join("root");
        symlink("/a", root.join("absolute")).unwrap();
        symlink("../../../a/b", root.join("a/upwards")).unwrap();
        symlink(top.path().join("secret"), root.join("outside")).unwrap();
        symlink("b", root.join("a/relative")).unwrap();
        assert_eq!(resolve(&top, "absolute/b").unwrap(), Path::new("a/b"));
        assert_eq!(resolve(&top, "a/upwards").unwrap(), Path::new("a/b"));
        assert_eq!(resolve(&top, "a/relative/..").unwrap(), Path::new("a"));
        assert_eq!(resolve(&top, "outside"), Err(Errno::ENOENT));
    }

    #[test]
    fn a_link_is_no_root() {
        let top = tree();
        let link = top.path().join("link");
        symlink(top.path().join("secret"), &link).unwrap();
        assert_eq!(open_in_root(&link, "").unwrap_err(), Errno::ENOTDIR);
    }

    #[test]
    fn links_in_a_circle_end() {
        let top = tree();
        symlink("circle", top.path().join("root/circle")).unwrap();
        assert_eq!(resolve(&top, "circle"), Err(Errno::ELOOP));
    }

    proptest! {
        #[test]
        fn no_path_and_no_link_leads_out(
            path in "(\\.\\./|a/|b/|l/|m/|/){0,8}",
            link in "(\\.\\./|a/|b/|m/|/){1,8}",
            other in "(\\.\\./|a/|b/|/secret){1,4}",
        ) {
            let top = tree();
            symlink(link, top.path().join("root/l")).unwrap();
            symlink(other, top.path().join("root/a/m")).unwrap();
            // `resolve` itself asserts that the result is inside.
            let _ = resolve(&top, &path);
        }
    }
}
