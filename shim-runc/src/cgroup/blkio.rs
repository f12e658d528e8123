//! Block I/O of a v1 cgroup: which files tell it depends on the I/O scheduler.

use std::collections::HashMap;
use std::fs;

use runtime_proto::metrics::v1::{BlkIOEntry, BlkIOStat};

use super::files::Files;
use super::text;

/// Where the kernel lists block devices by number and name.
const PARTITIONS: &str = "/proc/partitions";

/// Prefixes and suffixes of the files, best first: those of a scheduler that accounts by itself
/// (CFQ, later BFQ), else the generic layer's, which knows bytes and requests only.
const SOURCES: [(&str, &str); 4] = [
    ("blkio.", "_recursive"),
    ("blkio.bfq.", "_recursive"),
    ("blkio.throttle.", "_recursive"),
    ("blkio.throttle.", ""),
];

/// The statistics of the first source that has any.
pub(super) fn stat(files: &mut Files) -> BlkIOStat {
    let mut stats = SOURCES.iter().map(|(prefix, suffix)| from_source(files, prefix, suffix));
    let mut stat = stats.find(has_entries).unwrap_or_default();
    drop(stats);
    if has_entries(&stat) {
        let partitions = fs::read(PARTITIONS).unwrap_or_default();
        let names = device_names(&partitions);
        for entry in lists(&mut stat).into_iter().flatten() {
            if let Some(name) = names.get(&(entry.major, entry.minor)) {
                entry.device = format!("/dev/{name}");
            }
        }
    }
    stat
}

fn from_source(files: &mut Files, prefix: &str, suffix: &str) -> BlkIOStat {
    let mut read = |name: &str| entries(files.read(&format!("{prefix}{name}{suffix}")));
    BlkIOStat {
        io_service_bytes_recursive: read("io_service_bytes"),
        io_serviced_recursive: read("io_serviced"),
        io_queued_recursive: read("io_queued"),
        io_service_time_recursive: read("io_service_time"),
        io_wait_time_recursive: read("io_wait_time"),
        io_merged_recursive: read("io_merged"),
        io_time_recursive: read("time"),
        sectors_recursive: read("sectors"),
        ..BlkIOStat::new()
    }
}

fn lists(stat: &mut BlkIOStat) -> [&mut Vec<BlkIOEntry>; 8] {
    [
        &mut stat.io_service_bytes_recursive,
        &mut stat.io_serviced_recursive,
        &mut stat.io_queued_recursive,
        &mut stat.io_service_time_recursive,
        &mut stat.io_wait_time_recursive,
        &mut stat.io_merged_recursive,
        &mut stat.io_time_recursive,
        &mut stat.sectors_recursive,
    ]
}

fn has_entries(stat: &BlkIOStat) -> bool {
    !stat.io_service_bytes_recursive.is_empty() || !stat.io_serviced_recursive.is_empty()
}

/// Lines of `8:0 Read 4096` or `8:0 4096`. The `Total` of all devices is no entry.
pub(crate) fn entries(content: &[u8]) -> Vec<BlkIOEntry> {
    text::lines(content).filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<BlkIOEntry> {
    let mut words = text::words(line);
    let (major, minor) = text::device(words.next()?)?;
    let (op, value) = match (words.next()?, words.next()) {
        (op, Some(value)) => (str::from_utf8(op).ok()?, value),
        (value, None) => ("", value),
    };
    let value = text::number(value)?;
    Some(BlkIOEntry { op: op.to_owned(), major, minor, value, ..BlkIOEntry::new() })
}

/// Lines of `  8        1   524288 sda1`, after a heading.
pub(crate) fn device_names(partitions: &[u8]) -> HashMap<(u64, u64), &str> {
    let name = |line| {
        let mut words = text::words(line);
        let device = (text::number(words.next()?)?, text::number(words.next()?)?);
        Some((device, str::from_utf8(words.nth(1)?).ok()?))
    };
    text::lines(partitions).filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn fixture(contents: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in contents {
            fs::write(directory.path().join(name), content).unwrap();
        }
        directory
    }

    fn read(directory: &Path) -> BlkIOStat {
        stat(&mut Files::of(directory))
    }

    const BYTES: &str = "8:0 Read 4096\n8:0 Write 8192\n8:0 Total 12288\nTotal 12288\n";

    #[test]
    fn a_schedulers_own_files_come_first() {
        let directory = fixture(&[
            ("blkio.io_service_bytes_recursive", BYTES),
            ("blkio.sectors_recursive", "8:0 24\n8:1 3\n"),
            ("blkio.throttle.io_service_bytes", "8:0 Read 1\n"),
        ]);
        let stat = read(directory.path());
        let bytes = &stat.io_service_bytes_recursive;
        let told: Vec<_> = bytes.iter().map(|e| (e.major, e.minor, &*e.op, e.value)).collect();
        assert_eq!(told, [(8, 0, "Read", 4096), (8, 0, "Write", 8192), (8, 0, "Total", 12288)]);
        let sectors: Vec<_> = stat.sectors_recursive.iter().map(|e| (&*e.op, e.value)).collect();
        assert_eq!(sectors, [("", 24), ("", 3)]);
    }

    #[test]
    fn an_idle_scheduler_leaves_the_word_to_the_generic_layer() {
        let directory = fixture(&[
            ("blkio.io_service_bytes_recursive", ""),
            ("blkio.bfq.io_service_bytes_recursive", "Total 0\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 5\nTotal 5\n"),
            ("blkio.throttle.io_serviced", "8:0 Read 2\nTotal 2\n"),
        ]);
        let stat = read(directory.path());
        assert_eq!(stat.io_serviced_recursive.len(), 1);
        assert_eq!(stat.io_serviced_recursive[0].value, 5, "the recursive one counts children");
    }

    #[test]
    fn devices_are_named_by_their_numbers() {
        let table = b"major minor  #blocks  name\n\n   8        1   524288 sda1\n 254 0 9 vda\nx\n";
        let names = device_names(table);
        assert_eq!(names.get(&(8, 1)), Some(&"sda1"));
        assert_eq!(names.get(&(254, 0)), Some(&"vda"));
        assert_eq!(names.len(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (entries(&text).len(), device_names(&text).len());
        }
    }
}
