//! The cgroups of a process, as the kernel shows them: read apart from the code under test, whichever version this
//! host has.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Result};

/// Where a process is in each hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    /// Directories by controller; one directory without a controller's name on a host with v2 alone.
    dirs: Vec<(String, PathBuf)>,
}

impl Cgroups {
    /// The cgroups that a process is in now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let file = format!("/proc/{pid}/cgroup");
        let memberships = fs::read_to_string(&file).context(file)?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        Ok(Self { dirs: find(&memberships, &mounts) })
    }

    /// Has this host cgroup v2 alone?
    #[must_use]
    pub fn is_unified(&self) -> bool {
        self.dirs.iter().all(|(controller, _)| controller.is_empty())
    }

    /// The directory that a controller's files are in.
    ///
    /// # Errors
    /// When this host has no such controller.
    pub fn dir(&self, controller: &str) -> Result<&Path> {
        let wanted = if self.is_unified() { "" } else { controller };
        let found = self.dirs.iter().find(|(name, _)| name == wanted);
        let found = found.ok_or_else(|| Failure::new(format!("no controller {controller}")))?;
        Ok(&found.1)
    }

    /// All directories, each once.
    #[must_use]
    pub fn dirs(&self) -> Vec<&Path> {
        let mut dirs: Vec<&Path> = self.dirs.iter().map(|(_, dir)| dir.as_path()).collect();
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }

    /// A file's content, without the line's end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn text(&self, controller: &str, file: &str) -> Result<String> {
        let path = self.dir(controller)?.join(file);
        let text = fs::read_to_string(&path).context(format!("reading {}", path.display()))?;
        Ok(text.trim_end().to_owned())
    }

    /// A file's content as a number.
    ///
    /// # Errors
    /// When it is none.
    pub fn number(&self, controller: &str, file: &str) -> Result<u64> {
        Ok(self.text(controller, file)?.parse()?)
    }
}

/// Lays memberships over the mounts. Hierarchies that are not mounted from their top are left out.
fn find(memberships: &str, mounts: &str) -> Vec<(String, PathBuf)> {
    let v1 = mounts.lines().filter_map(|line| point(line, "cgroup"));
    let v1: Vec<(PathBuf, &str)> = v1.collect();
    let mut dirs = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let below = path.trim_start_matches('/');
        for controller in controllers.split(',').filter(|name| !name.is_empty()) {
            let has = |options: &str| options.split(',').any(|option| option == controller);
            if let Some((point, _)) = v1.iter().find(|(_, options)| has(options)) {
                dirs.push((controller.to_owned(), point.join(below)));
            }
        }
        if controllers.is_empty()
            && v1.is_empty()
            && let Some((point, _)) = mounts.lines().find_map(|line| point(line, "cgroup2"))
        {
            dirs.push((String::new(), point.join(below)));
        }
    }
    dirs
}

/// Mount point and superblock's options of a line of mountinfo, if it is of this filesystem and shows all of it.
fn point<'a>(line: &'a str, kind: &str) -> Option<(PathBuf, &'a str)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut filesystem = filesystem.split(' ');
    let is_kind = filesystem.next() == Some(kind);
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    (is_kind && root == "/").then(|| (PathBuf::from(point), filesystem.nth(1).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";

    #[test]
    fn hybrid_host_is_read_by_its_v1_hierarchies() {
        let mounts = format!(
            "{V2}\n31 20 0:27 / /c/cpu rw - cgroup none rw,cpu,cpuacct\n\
             32 20 0:28 /x /c/pids rw - cgroup none rw,pids"
        );
        let found = find("4:cpu,cpuacct:/a\n3:pids:/a\n0::/a\n", &mounts);
        let right = ["cpu", "cpuacct"].map(|name| (name.to_owned(), PathBuf::from("/c/cpu/a")));
        assert_eq!(found, right);
    }

    #[test]
    fn unified_host_has_one_directory() {
        let cgroups = Cgroups { dirs: find("0::/a\n", V2) };
        assert!(cgroups.is_unified());
        assert_eq!(cgroups.dir("memory").expect("found"), Path::new("/sys/fs/cgroup/a"));
    }
}
