//! What `/proc` says about processes.

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Ticks per second in `/proc`, the same on every architecture that containers run on.
const USER_HZ: u64 = 100;

/// One process at one time: a pid alone may come to mean another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Ticks after boot.
    pub(crate) started: u64,
}

impl Process {
    /// The process of this pid, unless it has ended.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may hold anything, brackets included.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        // Of the fields after the state, the start is the nineteenth.
        let started = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X" | "x")).then_some(Self { pid, started })
    }

    /// All processes.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| Self::find(entry.file_name().to_str()?.parse().ok()?))
    }

    /// Whether it still is there.
    pub(crate) fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// How long it has been running.
    pub(crate) fn age(self) -> Option<Duration> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
        let started = Duration::from_millis(self.started * 1000 / USER_HZ);
        Duration::try_from_secs_f64(uptime).ok()?.checked_sub(started)
    }

    /// Its share of memory in kB: private pages, and its part of those it shares.
    pub(crate) fn proportional_memory(self) -> Option<u64> {
        let rollup = fs::read_to_string(self.file("smaps_rollup")).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    }

    /// Its command line.
    pub(crate) fn arguments(self) -> Vec<String> {
        let bytes = fs::read(self.file("cmdline")).unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Its executable, by the name it was started from.
    pub(crate) fn executable(self) -> Option<PathBuf> {
        let link = fs::read_link(self.file("exe")).ok()?;
        Some(without_deleted(&link))
    }

    /// Where it works.
    pub(crate) fn directory(self) -> Option<PathBuf> {
        let link = fs::read_link(self.file("cwd")).ok()?;
        Some(without_deleted(&link))
    }

    /// The socket files it listens at.
    pub(crate) fn listens_at(self) -> Vec<PathBuf> {
        runtime_v2::inspect::listens_at(self.pid)
    }

    fn file(self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.pid).into()
    }
}

/// The kernel marks what was removed while it is in use; it is the same thing still.
fn without_deleted(link: &Path) -> PathBuf {
    let bytes = link.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

/// Mount points at or below a directory, as this process sees them; the innermost last.
pub(crate) fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// A path of mountinfo, which writes blanks and the like as `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_and_is_young() {
        let own = Process::find(std::process::id()).unwrap();
        assert!(own.is_alive());
        assert!(own.age().unwrap() < Duration::from_secs(3600));
        assert!(own.proportional_memory().unwrap() > 0);
        assert_eq!(own.executable(), std::env::current_exe().ok());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }

    #[test]
    fn listening_sockets_are_found_by_their_files() {
        use std::os::{
            linux::net::SocketAddrExt,
            unix::net::{SocketAddr, UnixListener},
        };
        let dir = tempfile::tempdir().unwrap();
        let name = [b"\xff\xfe ", dir.path().as_os_str().as_bytes()].concat();
        let _odd = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let path = dir.path().join("a  b c");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(Process::find(std::process::id()).unwrap().listens_at().contains(&path));
    }

    #[test]
    fn escapes_of_mountinfo_are_read() {
        assert_eq!(unescape("/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape("/a\\9"), Path::new("/a\\9"));
        assert!(mounts_below(Path::new("/")).unwrap().contains(&PathBuf::from("/proc")));
    }
}
