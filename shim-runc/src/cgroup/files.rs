//! Reading the files of one cgroup directory.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::text;

/// A cgroup directory. What cannot be read is absent: controllers come and go, and one file
/// that fails must not cost the reader the rest.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    /// Reused from file to file.
    buffer: Vec<u8>,
}

impl Files {
    pub(super) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), buffer: Vec::with_capacity(4096) }
    }

    /// The content of a file; empty when there is none.
    pub(super) fn read(&mut self, name: &str) -> &[u8] {
        self.buffer.clear();
        let path = self.directory.join(name);
        if let Err(error) = File::open(&path).and_then(|mut f| f.read_to_end(&mut self.buffer)) {
            self.buffer.clear();
            if !is_gone(&error) {
                tracing::debug!(path = %path.display(), %error, "cgroup file skipped");
            }
        }
        &self.buffer
    }

    /// A file with a single number; 0 when there is none.
    pub(super) fn number(&mut self, name: &str) -> u64 {
        text::number(self.read(name)).unwrap_or(0)
    }

    /// A file with a single number or `max`; 0 when there is none.
    pub(super) fn limit(&mut self, name: &str) -> u64 {
        text::limit(self.read(name)).unwrap_or(0)
    }

    /// Page sizes that have a file `hugetlb.<size><suffix>`.
    pub(super) fn hugetlb_sizes(&self, suffix: &str) -> Vec<String> {
        let Ok(entries) = self.directory.read_dir() else { return Vec::new() };
        let size_of = |name: &str| {
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(suffix)?;
            // `hugetlb.2MB.rsvd.usage_in_bytes` counts reservations of the same size.
            (!size.contains('.')).then(|| size.to_owned())
        };
        let mut sizes: Vec<String> =
            entries.flatten().filter_map(|entry| size_of(entry.file_name().to_str()?)).collect();
        sizes.sort_unstable();
        sizes
    }
}

/// Whether an error only says that the file, or the cgroup under it, is not there.
pub(super) fn is_gone(error: &io::Error) -> bool {
    // An open file of a removed cgroup answers ENODEV.
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_missing_or_of_another_form_reads_as_zero() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("pids.current"), "7\n").unwrap();
        fs::write(directory.path().join("pids.max"), "max\n").unwrap();
        fs::create_dir(directory.path().join("memory.current")).unwrap();
        let mut files = Files::of(directory.path());
        assert_eq!(files.number("pids.current"), 7);
        assert_eq!(files.number("pids.max"), 0);
        assert_eq!(files.limit("pids.max"), u64::MAX);
        assert_eq!(files.number("memory.current"), 0, "a directory is no file");
        assert_eq!(files.read("absent"), b"");
    }

    #[test]
    fn page_sizes_come_from_the_names_of_files() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["hugetlb.2MB.current", "hugetlb.1GB.current", "hugetlb.2MB.rsvd.current"] {
            fs::write(directory.path().join(name), "0").unwrap();
        }
        assert_eq!(Files::of(directory.path()).hugetlb_sizes(".current"), ["1GB", "2MB"]);
        assert!(Files::of(Path::new("/nonexistent")).hugetlb_sizes(".current").is_empty());
    }
}
