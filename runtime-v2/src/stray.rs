//! Processes that a shim's `start` has left behind and that nobody can reach by a socket.
//!
//! `start` may fail or hang after it has launched the long-running process, and that one may hang
//! too. Either was started in the bundle, and a bundle's path belongs to one container; so a
//! process of that working directory which names the container on its command line, or runs the
//! shim's own executable, is that shim. It is killed with all its descendants: a stuck call of
//! the OCI runtime would otherwise go on and make the container after all.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{bundle::Bundle, error::Result, socket_file};

/// A killed process needs a moment to be gone from /proc; fifty of these are one second, after
/// which it is stuck in the kernel and nothing helps.
const GONE_PAUSE: Duration = Duration::from_millis(20);
const GONE_TRIES: u32 = 50;

/// Kills the shim that was started in this bundle, if there is one, and removes the sockets it
/// listened on; returns how many processes that were.
///
/// # Errors
/// When the search was cut off.
pub(crate) async fn kill_shim_of(bundle: &Bundle, binary: Option<&Path>) -> Result<usize> {
    let binary = binary.map(Path::to_path_buf);
    let (killed, sockets) =
        bundle.blocking(move |bundle| Ok(kill_all(bundle, binary.as_deref()))).await?;
    for socket in sockets {
        socket_file::remove_if_dead(&socket).await;
    }
    Ok(killed)
}

/// Kills until nothing is found any more; tells how many and where they listened.
fn kill_all(bundle: &Bundle, binary: Option<&Path>) -> (usize, HashSet<PathBuf>) {
    let (mut killed, mut sockets) = (0, HashSet::new());
    for _ in 0..GONE_TRIES {
        let found = find(bundle, binary);
        if found.is_empty() {
            break;
        }
        killed = killed.max(found.len());
        for pid in found {
            sockets.extend(sockets_of(pid));
            // Gone already, or not ours to kill; the next round tells.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(GONE_PAUSE);
    }
    (killed, sockets)
}

/// Files of the sockets that a process holds, by the inodes of its descriptors.
fn sockets_of(pid: i32) -> Vec<PathBuf> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let inode = |target: PathBuf| {
        let name = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(name.to_owned())
    };
    let inodes: HashSet<String> =
        fds.flatten().filter_map(|fd| inode(fs::read_link(fd.path()).ok()?)).collect();
    let Ok(table) = fs::read_to_string(format!("/proc/{pid}/net/unix")) else { return Vec::new() };
    // Num RefCount Protocol Flags Type St Inode Path
    let path = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(6);
        let held = inodes.contains(fields.next()?);
        fields.next().filter(|path| held && path.starts_with('/')).map(PathBuf::from)
    };
    table.lines().filter_map(path).collect()
}

fn find(bundle: &Bundle, binary: Option<&Path>) -> HashSet<i32> {
    let processes = processes();
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let is_shim = |pid: i32| {
        pid > 1
            && pid != own
            && works_in(pid, bundle.path())
            && (names(pid, bundle.key().id.as_str()) || runs(pid, binary))
    };
    let mut found: HashSet<i32> = processes.keys().copied().filter(|pid| is_shim(*pid)).collect();
    // Children of what was found, and theirs, until there are no more.
    loop {
        let more: Vec<i32> = processes
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Every process that has not ended, and its parent.
fn processes() -> HashMap<i32, i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, parent_of_living(pid)?)))
        .collect()
}

/// The parent of a process, from `/proc/<pid>/stat`; none for zombies.
fn parent_of_living(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, spaces and parentheses included.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.next()?.parse().ok() }
}

fn works_in(pid: i32, dir: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir)
}

fn names(pid: i32, id: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == id.as_bytes()))
}

fn runs(pid: i32, binary: Option<&Path>) -> bool {
    let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let exe = exe.as_os_str().as_bytes();
    // Replaced by an upgrade, it still is the shim.
    let exe = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
    binary.is_some_and(|binary| {
        binary.canonicalize().unwrap_or_else(|_| binary.to_path_buf()).as_os_str().as_bytes() == exe
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::{
        config::{Config, Daemon},
        id::Key,
    };

    fn bundle(dir: &Path) -> Bundle {
        let daemon = Daemon {
            grpc_address: String::new(),
            ttrpc_address: String::new(),
            binary: "/bin/true".into(),
            version: String::new(),
        };
        // A real path, as /proc shows it.
        let dir = dir.canonicalize().unwrap();
        let config = Config::new(dir.join("s"), dir.join("r"), daemon);
        Bundle::create(&config, Key::new("ns", "stray-1").unwrap(), None).unwrap()
    }

    fn sleeper(cwd: &Path, id: &str) -> Child {
        let script = "sleep 1000 & read line";
        Command::new("/bin/sh")
            .args(["-c", script, "-id", id])
            .current_dir(cwd)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn only_the_shim_of_this_bundle_is_killed_and_its_children_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = bundle(dir.path());
        let mut shim = sleeper(bundle.path(), "stray-1");
        let mut visitor = sleeper(bundle.path(), "someone-else");
        let mut elsewhere = sleeper(dir.path(), "stray-1");
        // The shell and its background sleep; the shell may not have started that one yet.
        while find(&bundle, None).len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(kill_shim_of(&bundle, None).await.unwrap(), 2);
        assert!(!shim.wait().unwrap().success());
        assert_eq!(kill_shim_of(&bundle, None).await.unwrap(), 0);
        for other in [&mut visitor, &mut elsewhere] {
            assert!(other.try_wait().unwrap().is_none(), "not ours and still alive");
            let pid = i32::try_from(other.id()).unwrap();
            for (child, parent) in processes() {
                if parent == pid {
                    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
                }
            }
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }
}
