//! What /proc tells about processes. Each look may come too late: the process has ended then.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::{
    param::clock_ticks_per_second,
    time::{ClockId, clock_gettime},
};

/// Of a second.
const NANOS: u64 = 1_000_000_000;

/// Flag of a listening socket in /proc/net/unix (the kernel's `__SO_ACCEPTCON`).
const ACCEPTS: u32 = 0x1_0000;

/// The time now, as [`Stat::started`] has it.
pub(crate) fn now() -> u64 {
    let since_boot = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(since_boot.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(since_boot.tv_nsec).unwrap_or_default();
    let rate = clock_ticks_per_second();
    seconds * rate + nanos * rate / NANOS
}

/// What is read of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    /// In clock ticks since the boot; with the pid, it names one process for good.
    pub(crate) started: u64,
}

/// Every process that has not ended.
pub(crate) fn processes() -> HashMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, stat(pid)?)))
        .collect()
}

/// One process; none if it has ended.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, spaces and parentheses included.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 22 of the line; the parent is field 4.
    let started = fields.nth(17)?.parse().ok()?;
    (!matches!(state, 'Z' | 'X')).then_some(Stat { state, parent, started })
}

/// Whether this is its working directory.
pub(crate) fn works_in(pid: i32, dir: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir)
}

/// Whether this is a word of its command line.
pub(crate) fn names(pid: i32, word: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|other| other == word.as_bytes()))
}

/// Whether it has no command line, as one has that is just executing something: the new one is
/// filled in after the old one has gone. One that has ended has none either.
pub(crate) fn has_no_words(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
        && stat(pid).is_some()
}

/// Whether it was given this in its environment.
pub(crate) fn has_env(pid: i32, name: &str, value: &str) -> bool {
    let wanted = format!("{name}={value}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|env| env.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
}

/// Whether this is its executable.
pub(crate) fn runs(pid: i32, binary: &Path) -> bool {
    let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let exe = exe.as_os_str().as_bytes();
    // Replaced by an upgrade, it still is the shim.
    let exe = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
    let binary = binary.canonicalize().unwrap_or_else(|_| binary.to_path_buf());
    binary.as_os_str().as_bytes() == exe
}

/// Inodes of the sockets that a process holds.
pub(crate) fn socket_inodes(pid: i32) -> HashSet<String> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return HashSet::new() };
    let inode = |target: PathBuf| {
        let name = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(name.to_owned())
    };
    fds.flatten().filter_map(|fd| inode(fs::read_link(fd.path()).ok()?)).collect()
}

/// Inodes of the sockets that listen by one of these names.
pub(crate) fn listening_inodes(names: &HashSet<String>) -> HashSet<String> {
    if names.is_empty() {
        return HashSet::new();
    }
    let table = table("/proc/net/unix");
    rows(&table)
        .filter(|row| row.listens() && names.contains(row.path))
        .map(|row| row.inode.to_owned())
        .collect()
}

/// Files of the sockets that a process holds.
pub(crate) fn sockets_of(pid: i32) -> Vec<PathBuf> {
    socket_files(pid, |_| true)
}

/// Files of the sockets that a process listens at.
pub(crate) fn listens_at(pid: i32) -> Vec<PathBuf> {
    socket_files(pid, |row| row.listens())
}

fn socket_files(pid: i32, wanted: impl Fn(&Row<'_>) -> bool) -> Vec<PathBuf> {
    let inodes = socket_inodes(pid);
    let table = table(&format!("/proc/{pid}/net/unix"));
    let held = rows(&table).filter(|row| inodes.contains(row.inode) && wanted(row));
    held.filter(|row| row.path.starts_with('/')).map(|row| row.path.into()).collect()
}

/// A row of /proc/net/unix that has a path.
struct Row<'a> {
    flags: u32,
    inode: &'a str,
    path: &'a str,
}

impl Row<'_> {
    fn listens(&self) -> bool {
        self.flags & ACCEPTS != 0
    }
}

/// A table of sockets. Names may be any bytes, and those of others are no reason to know nothing.
fn table(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    // Num RefCount Protocol Flags Type St Inode Path: padded, but for the last, which may hold blanks
    // of its own.
    table.lines().filter_map(|line| {
        let mut rest = line;
        let mut field = || {
            let (word, tail) = rest.trim_start_matches(' ').split_once(' ')?;
            rest = tail;
            Some(word)
        };
        let flags = u32::from_str_radix([field()?, field()?, field()?, field()?][3], 16).ok()?;
        let inode = [field()?, field()?, field()?][2];
        Some(Row { flags, inode, path: rest })
    })
}

#[cfg(test)]
mod tests {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    };

    use super::*;

    #[test]
    fn a_process_is_as_old_as_its_start() {
        let before = now();
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let started = stat(i32::try_from(child.id()).unwrap()).unwrap().started;
        assert!((before..=now()).contains(&started), "{before} {started}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn sockets_are_found_by_whatever_name_and_beside_whatever_others() {
        let dir = tempfile::tempdir().unwrap();
        // Anybody on the machine, and in its network, may have one of these.
        let name = [b"\xff\xfe ", dir.path().as_os_str().as_bytes()].concat();
        let _odd = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let path = dir.path().join("a  b c");
        let _listener = UnixListener::bind(&path).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let listening = listening_inodes(&HashSet::from([path.to_str().unwrap().to_owned()]));
        assert_eq!(listening.len(), 1);
        assert!(listening.is_subset(&socket_inodes(own)));
        assert!(sockets_of(own).contains(&path));
    }
}
