//! Reading of `/proc/<pid>/mountinfo`, line by line: a pod's table is long, and few lines matter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The mount table of this thread, which in a shim is that of all its threads.
pub(crate) const OWN_MOUNTS: &str = "/proc/thread-self/mountinfo";

/// One line of the table (proc_pid_mountinfo(5)), still in the kernel's escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    root: &'a [u8],
    mount_point: &'a [u8],
    fs_type: &'a [u8],
    super_options: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Takes a line apart; `None` if it is none of this table.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let (id, parent, _device) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        let _options = fields.next()?;
        // Any number of optional fields ends with a lone dash.
        fields.by_ref().find(|&field| field == b"-")?;
        let fs_type = fields.next()?;
        let _source = fields.next()?;
        let super_options = fields.next()?;
        Some(Self { id, parent, root, mount_point, fs_type, super_options })
    }

    /// The numbers of this mount and of the one that it is mounted on.
    pub(crate) fn ids(&self) -> Option<(u64, u64)> {
        let number = |field| str::from_utf8(field).ok()?.parse().ok();
        Some((number(self.id)?, number(self.parent)?))
    }

    /// The directory of the filesystem that is mounted.
    pub(crate) fn root(&self) -> PathBuf {
        unescape(self.root)
    }

    /// Where it is mounted.
    pub(crate) fn mount_point(&self) -> PathBuf {
        unescape(self.mount_point)
    }

    /// Whether the mount point is `path` or below it.
    pub(crate) fn is_within(&self, path: &Path) -> bool {
        self.mount_point().starts_with(path)
    }

    /// The filesystem's type.
    pub(crate) fn fs_type(&self) -> &'a [u8] {
        self.fs_type
    }

    /// The options of the filesystem; for cgroup v1 the controllers are among them.
    pub(crate) fn super_options(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.super_options.split(|&byte| byte == b',')
    }
}

/// Calls `visit` with every entry of the table in `table`, in the kernel's order.
pub(crate) fn for_each(table: &Path, mut visit: impl FnMut(Entry<'_>)) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(table)?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if let Some(entry) = Entry::parse(line.strip_suffix(b"\n").unwrap_or(&line)) {
            visit(entry);
        }
        line.clear();
    }
    Ok(())
}

/// Undoes the kernel's escapes: a backslash and three octal digits stand for one byte.
fn unescape(mut escaped: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(escaped.len());
    while let Some((&first, rest)) = escaped.split_first() {
        match rest.first_chunk().and_then(octal) {
            Some(byte) if first == b'\\' => {
                path.push(byte);
                escaped = rest.get(3..).unwrap_or_default();
            }
            _ => {
                path.push(first);
                escaped = rest;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// The byte that three octal digits name.
fn octal(digits: &[u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn entry(line: &str) -> Entry<'_> {
        Entry::parse(line.as_bytes()).expect("a mountinfo line")
    }

    #[test]
    fn fields_are_found_around_any_number_of_optional_ones() {
        for optional in ["", "shared:7 ", "shared:7 master:1 propagate_from:2 "] {
            let line = format!("36 35 98:0 /mnt1 /mnt2 ro,noatime {optional}- ext3 /dev/root rw,a");
            let entry = entry(&line);
            assert_eq!(entry.ids(), Some((36, 35)));
            assert_eq!(entry.root(), Path::new("/mnt1"));
            assert_eq!(entry.mount_point(), Path::new("/mnt2"));
            assert_eq!(entry.fs_type(), b"ext3");
            assert!(entry.super_options().eq([&b"rw"[..], b"a"]));
        }
    }

    #[test]
    fn an_empty_source_is_still_a_field() {
        assert_eq!(entry("1 0 0:1 / /x rw - tmpfs  rw,size=1k").fs_type(), b"tmpfs");
    }

    #[test]
    fn escapes_become_the_bytes_they_stand_for() {
        let escaped = entry(r"1 0 0:1 / /a\040b\011c\134d\012 rw - tmpfs t rw");
        assert_eq!(escaped.mount_point(), Path::new("/a b\tc\\d\n"));
        for literal in [r"\04", r"\", r"\999", r"\400", r"\0x0"] {
            assert_eq!(unescape(literal.as_bytes()), Path::new(literal));
        }
    }

    #[test]
    fn being_within_a_directory_goes_by_components() {
        let entry = entry(r"1 0 0:1 / /run/a\040b/rootfs rw - tmpfs t rw");
        assert!(entry.is_within(Path::new("/run/a b")));
        assert!(entry.is_within(Path::new("/run/a b/rootfs")));
        assert!(!entry.is_within(Path::new("/run/a b/root")));
    }

    #[test]
    fn foreign_lines_are_passed_over() {
        let mut table = tempfile::NamedTempFile::new().unwrap();
        write!(table, "nonsense\n\n1 0 0:1 / /x rw - tmpfs t rw\n2 0 0:1 / /y rw - tmpfs").unwrap();
        let mut seen = Vec::new();
        for_each(table.path(), |entry| seen.push(entry.mount_point())).unwrap();
        assert_eq!(seen, [Path::new("/x")]);
    }

    #[test]
    fn the_own_table_is_readable() {
        let mut root_seen = false;
        for_each(Path::new(OWN_MOUNTS), |entry| root_seen |= entry.mount_point() == Path::new("/"))
            .unwrap();
        assert!(root_seen);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(entry) = Entry::parse(&line) {
                let _ = (entry.ids(), entry.root(), entry.mount_point());
            }
        }

        #[test]
        fn escaping_and_unescaping_meet(path in proptest::collection::vec(any::<u8>(), 0..60)) {
            let escaped: Vec<u8> =
                path.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes()).collect();
            prop_assert_eq!(unescape(&escaped).into_os_string().into_vec(), path);
        }
    }
}
