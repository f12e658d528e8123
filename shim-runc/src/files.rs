//! Small files that others wrote, or may have put something else in the place of: those of a bundle. What is no plain file
//! (a fifo, a device) is refused, since it can hold up for ever whoever opens it, and so is what has no end.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Opens a plain file.
///
/// # Errors
/// As open(2); and when it is not plain.
pub fn open(path: &Path) -> io::Result<File> {
    plain(OpenOptions::new().read(true), 0, path)
}

/// Reads a plain file of at most `most` bytes.
///
/// # Errors
/// As open(2) and read(2); and when it is not plain or is larger.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let too_large = || {
        let message = format!("it is larger than {most} bytes");
        io::Error::new(io::ErrorKind::FileTooLarge, message)
    };
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large());
    }
    let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    // It may grow while it is read, and files of the kernel have no length.
    file.take(most.saturating_add(1)).read_to_end(&mut content)?;
    match u64::try_from(content.len()) {
        Ok(length) if length <= most => Ok(content),
        _ => Err(too_large()),
    }
}

/// Writes a plain file with this mode, in the place of what was in it. A link is not followed.
///
/// # Errors
/// As open(2) and write(2); and when it is not plain.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    plain(&mut options, libc::O_NOFOLLOW, path)?.write_all(content)
}

fn plain(options: &mut OpenOptions, flags: libc::c_int, path: &Path) -> io::Result<File> {
    // Waits for nobody, whatever it is.
    let file = options.custom_flags(flags | libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn plain_files_are_read_and_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, b"longer", 0o600).unwrap();
        write(&path, b"short", 0o600).unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"short");
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(&dir.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        // One that has no length before it is read.
        assert!(!read(Path::new("/proc/self/stat"), 1 << 20).unwrap().is_empty());
    }

    #[test]
    fn nothing_else_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let endless = dir.path().join("endless");
        symlink("/dev/zero", &endless).unwrap();
        for path in [fifo.as_path(), dir.path(), endless.as_path()] {
            assert!(read(path, 1 << 20).is_err(), "{}", path.display());
            assert!(open(path).is_err(), "{}", path.display());
            assert!(write(path, b"x", 0o600).is_err(), "{}", path.display());
        }
        // Not even with somebody at the other end.
        let _reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        assert!(write(&fifo, b"x", 0o600).is_err());
        assert!(read(&fifo, 10).is_err());
    }

    #[test]
    fn links_are_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (link, other) = (dir.path().join("link"), dir.path().join("other"));
        fs::write(&other, "kept").unwrap();
        symlink(&other, &link).unwrap();
        assert!(write(&link, b"x", 0o600).is_err());
        assert_eq!(fs::read(&other).unwrap(), b"kept");
    }
}
