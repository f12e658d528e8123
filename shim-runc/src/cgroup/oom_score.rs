//! How readily the kernel kills the shim when memory runs out.

use std::fs;
use std::io;

use crate::error::{Error, Result};

/// What the kernel accepts.
const LOWEST: i32 = -1000;
const HIGHEST: i32 = 1000;

/// Makes `pid` (a shim) a little more likely to be chosen than `parent` (its containerd): a node
/// that loses a shim loses a pod, a node that loses its containerd loses them all.
///
/// Not being allowed to is no error for a process without the privilege, or in a user namespace.
///
/// # Errors
/// When a score cannot be read or written.
pub fn adjust_oom_score(pid: u32, parent: u32) -> Result<()> {
    let path = |pid: u32| format!("/proc/{pid}/oom_score_adj");
    let parents = fs::read_to_string(path(parent))
        .map_err(|error| Error::io(format!("read the OOM score of process {parent}"), error))?;
    let score = next_score(&parents).ok_or_else(|| {
        let text = format!("process {parent} has the OOM score {parents:?}");
        Error::io(text, io::Error::from(io::ErrorKind::InvalidData))
    })?;
    match fs::write(path(pid), score.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_unprivileged() => {
            tracing::debug!(pid, score, %error, "OOM score left as it is");
            Ok(())
        }
        Err(error) => Err(Error::io(format!("set the OOM score of process {pid}"), error)),
        Ok(()) => Ok(()),
    }
}

pub(crate) fn next_score(parents: &str) -> Option<i32> {
    let score: i32 = parents.trim().parse().ok()?;
    Some(score.saturating_add(1).clamp(LOWEST, HIGHEST))
}

fn is_unprivileged() -> bool {
    !nix::unistd::geteuid().is_root()
        || fs::read("/proc/self/uid_map").is_ok_and(|map| !maps_everyone(&map))
}

/// Whether a uid map is the one of the initial user namespace: every id onto itself.
fn maps_everyone(map: &[u8]) -> bool {
    map.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).eq([
        &b"0"[..],
        b"0",
        b"4294967295",
    ])
}

#[cfg(test)]
mod tests {
    use super::super::on_this_kernel::Shell;
    use super::*;

    #[test]
    fn the_score_is_one_more_within_the_kernels_range() {
        assert_eq!(next_score("-999\n"), Some(-998));
        assert_eq!(next_score("1000\n"), Some(1000));
        assert_eq!(next_score("-5000"), Some(-1000));
        assert_eq!(next_score("2147483647"), Some(1000));
        assert_eq!(next_score("x"), None);
        assert_eq!(next_score(""), None);
    }

    #[test]
    fn only_the_whole_range_is_the_initial_namespace() {
        assert!(maps_everyone(b"         0          0 4294967295\n"));
        assert!(!maps_everyone(b"         0     100000      65536\n"));
        assert!(!maps_everyone(b""));
    }

    #[test]
    fn a_child_gets_one_more_than_its_parent() {
        let child = Shell::run("exec sleep 1000");
        let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        adjust_oom_score(child.pid(), std::process::id()).unwrap();
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", child.pid())).unwrap();
        assert_eq!(score.trim().parse().ok(), next_score(&own));
        assert!(adjust_oom_score(u32::MAX, std::process::id()).is_err());
    }
}
