//! The small files of a bundle: written whole or not at all, and read with suspicion.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use runtime_proto::{
    bootstrap::{Bootstrap, MIN_VERSION, Protocol},
    errdefs::Code,
};
use serde::{Deserialize, Serialize};

use super::{Bundle, Origin};
use crate::{
    error::{Error, Result},
    hearing::Told,
};

/// More than this is in no small file that anybody wrote on purpose.
const MAX_SMALL_FILE: u64 = 64 << 10;

const BOOTSTRAP: &str = "bootstrap.json";
const ADDRESS: &str = "address";
const BINARY_PATH: &str = "shim-binary-path";
const SANDBOX: &str = "sandbox";
const SHARED: &str = "shim-shared";
const LOG: &str = "log";
const INIT_PID: &str = "init.pid";
const END: &str = "end.json";
const DELETING: &str = "deleting";

/// What was published about a task's end, as this manager alone writes and reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndNote {
    /// Whether the exit is out. Once, no end was noted before that.
    #[serde(default = "yes")]
    pub(crate) exited: bool,
    /// Whether the deletion is out.
    #[serde(default)]
    pub(crate) deleted: bool,
    pub(crate) pid: u32,
    pub(crate) status: u32,
    pub(crate) seconds: i64,
    pub(crate) nanos: i32,
}

fn yes() -> bool {
    true
}

impl EndNote {
    /// Which events are out.
    pub(crate) fn told(self) -> Told {
        Told { exit: self.exited, deletion: self.deleted }
    }
}

/// What a bundle says about where its shim is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Located {
    /// No shim ever got as far as having an address, or its end is behind it.
    Nowhere,
    /// Here.
    At(Bootstrap),
    /// Here, by an `address` file of containerd 1.x.
    AtLegacy(Bootstrap),
    /// There is something, but nobody can read it.
    Garbled(String),
}

impl Located {
    /// Where it is, if that can be read.
    pub(crate) fn location(self) -> Option<Bootstrap> {
        match self {
            Located::At(location) | Located::AtLegacy(location) => Some(location),
            Located::Nowhere | Located::Garbled(_) => None,
        }
    }
}

impl Bundle {
    /// Reads where the shim is.
    pub(crate) fn located(&self) -> Located {
        match read_small(&self.path().join(BOOTSTRAP)) {
            Ok(bytes) => match Bootstrap::decode(&bytes).and_then(Bootstrap::supported) {
                Ok(bootstrap) => Located::At(bootstrap),
                Err(error) => Located::Garbled(format!("{BOOTSTRAP}: {error}")),
            },
            Err(error) if error.kind() == Code::NotFound => self.located_by_address(),
            Err(error) => Located::Garbled(error.to_string()),
        }
    }

    fn located_by_address(&self) -> Located {
        match read_small(&self.path().join(ADDRESS)) {
            Ok(bytes) => match Bootstrap::decode(&bytes).and_then(Bootstrap::supported) {
                Ok(bootstrap) => Located::AtLegacy(bootstrap),
                Err(error) => Located::Garbled(format!("{ADDRESS}: {error}")),
            },
            Err(error) if error.kind() == Code::NotFound => Located::Nowhere,
            Err(error) => Located::Garbled(error.to_string()),
        }
    }

    /// Writes where the shim is, in the form that containerd reads too; and in the older one, for
    /// a shim that containerd 1.x could speak with.
    ///
    /// # Errors
    /// When it cannot be written; an older file is then still whole.
    pub(crate) fn write_bootstrap(&self, bootstrap: &Bootstrap) -> Result<()> {
        write_atomic(&self.path().join(BOOTSTRAP), bootstrap.to_json().as_bytes(), 0o644)?;
        if bootstrap.version == MIN_VERSION && bootstrap.protocol == Protocol::Ttrpc {
            self.write_address(&bootstrap.address)?;
        }
        Ok(())
    }

    /// Takes over from the sandbox's bundle that containerd 1.x could speak with its shim: nobody
    /// writes an address there for one that speaks v3 alone.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_address_as(&self, sandbox: &str, bootstrap: &Bootstrap) -> Result<()> {
        let theirs = self.path().with_file_name(sandbox).join(ADDRESS);
        match read_small(&theirs) {
            Ok(text) if is_text(&text, &bootstrap.address) => {
                self.write_address(&bootstrap.address)
            }
            _ => Ok(()),
        }
    }

    fn write_address(&self, address: &str) -> Result<()> {
        let path = self.path().join(ADDRESS);
        if read_small(&path).is_ok_and(|text| is_text(&text, address)) {
            return Ok(());
        }
        write_atomic(&path, address.as_bytes(), 0o644)
    }

    /// Forgets where the shim is, once it is known to have ended. If the rest of the bundle
    /// cannot be removed now, the next start then knows that no task was lost here.
    pub(crate) fn forget_shim(&self) {
        for name in [BOOTSTRAP, ADDRESS] {
            // Missing is the aim; any other failure shows when the bundle itself is removed.
            let _ = fs::remove_file(self.path().join(name));
        }
    }

    /// Forgets the old form of the address if its socket is gone: the `delete` of containerd 1.6's
    /// shims removes that socket, and does nothing more where there is none.
    pub(crate) fn forget_dead_address(&self) {
        let old = self.path().join(ADDRESS);
        let socket = read_small(&old).ok().and_then(|bytes| {
            let location = Bootstrap::decode(&bytes).ok()?;
            crate::address::socket_file(&location.address)
        });
        // The new form keeps what the next start has to know.
        if socket.is_some_and(|path| !path.exists()) && self.path().join(BOOTSTRAP).exists() {
            // Should it stay, that `delete` says so.
            let _ = fs::remove_file(old);
        }
    }

    /// Notes which binary this bundle's shim is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_binary_path(&self, binary: &Path) -> Result<()> {
        let text = binary.as_os_str().as_encoded_bytes();
        write_atomic(&self.path().join(BINARY_PATH), text, 0o600)
    }

    /// Which binary this bundle's shim is, if that was noted.
    pub(crate) fn binary_path(&self) -> Option<PathBuf> {
        let bytes = read_small(&self.path().join(BINARY_PATH)).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        Some(PathBuf::from(text.trim())).filter(|path| path.is_absolute())
    }

    /// Notes in whose shim this container is, and how it came there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_sandbox(&self, sandbox: &str, origin: Origin) -> Result<()> {
        if origin == Origin::Shared {
            // Beside the file that containerd knows, which is the sandbox's id and nothing more.
            write_atomic(&self.path().join(SHARED), &[], 0o600)?;
        }
        write_atomic(&self.path().join(SANDBOX), sandbox.as_bytes(), 0o600)
    }

    /// In whose shim this container is, if not in its own.
    pub(crate) fn sandbox(&self) -> Option<String> {
        let bytes = read_small(&self.path().join(SANDBOX)).ok()?;
        String::from_utf8(bytes).ok().filter(|sandbox| !sandbox.is_empty())
    }

    /// How this container came to its shim.
    pub(crate) fn origin(&self) -> Origin {
        match self.sandbox() {
            None => Origin::Started,
            Some(_) if self.path().join(SHARED).exists() => Origin::Shared,
            Some(_) => Origin::Joined,
        }
    }

    /// Init's pid as the OCI runtime wrote it, if it ever got so far.
    pub(crate) fn init_pid(&self) -> Option<u32> {
        let bytes = read_small(&self.path().join(INIT_PID)).ok()?;
        std::str::from_utf8(&bytes).ok()?.trim().parse().ok().filter(|pid| *pid > 0)
    }

    /// Notes what was published about the end. Should the shim die later, perhaps under another
    /// manager, it is not made up a second time.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_end(&self, end: EndNote) -> Result<()> {
        let text = serde_json::to_vec(&end)
            .map_err(|error| Error::caused(Code::Internal, "encode an end", error))?;
        // An event is told twice when its manager is killed before this. So it is not put off by a disk: behind a power
        // failure there is no container either.
        write_whole(&self.path().join(END), &text, 0o600, |_| Ok(()))
    }

    /// What was published about the end.
    pub(crate) fn end(&self) -> Option<EndNote> {
        serde_json::from_slice(&read_small(&self.path().join(END)).ok()?).ok()
    }

    /// Notes that the shim is asked to delete the task.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_deleting(&self) -> Result<()> {
        write_whole(&self.path().join(DELETING), b"", 0o600, |_| Ok(()))
    }

    /// Whether some manager has asked the shim to delete the task.
    pub(crate) fn is_deleting(&self) -> bool {
        self.path().join(DELETING).exists()
    }

    /// The shim's log fifo, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn log_fifo(&self) -> Result<PathBuf> {
        let path = self.path().join(LOG);
        match mkfifo(&path, Mode::S_IRWXU) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(path),
            Err(error) => Err(Error::io(format!("make fifo {}", path.display()), error)),
        }
    }
}

/// Writes a file nobody reads yet.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    open_new(path, 0o600)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|error| Error::io(format!("write {}", path.display()), error))
}

/// Writes a file that is whole whenever it is seen, even after a power failure.
fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write_whole(path, bytes, mode, File::sync_all)
}

/// Writes a file that is whole whenever it is seen; behind a power failure, if `secure` sees to it.
fn write_whole(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    secure: fn(&File) -> io::Result<()>,
) -> Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let temporary = path.with_file_name(name);
    let written = open_anew(&temporary, mode)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| secure(&file)))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io(format!("write {}", path.display()), error)
    })
}

fn open_anew(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => open_new(path, mode),
    }
}

fn open_new(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    // Set again, since the umask had its say.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(file)
}

/// Whether a small file says this, by itself on a line or not.
fn is_text(bytes: &[u8], text: &str) -> bool {
    bytes.trim_ascii() == text.as_bytes()
}

/// Reads a small regular file; anything else by that name is an error, never a hang.
fn read_small(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    // Non-blocking: a fifo by that name would wait for a writer.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() || meta.size() > MAX_SMALL_FILE {
        let text = format!("{} is no small file", path.display());
        return Err(Error::new(Code::DataLoss, text));
    }
    let mut bytes = Vec::new();
    file.take(MAX_SMALL_FILE).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
