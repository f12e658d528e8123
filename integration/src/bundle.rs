//! A bundle on disk, laid out as the task manager lays it out before it starts a shim.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use containerd_shim_protos::api::Mount;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::spec::Spec;

/// One container's bundle. Its directory stays until the fixture ends, as the manager would keep it until `delete`.
#[derive(Debug)]
pub struct Bundle {
    /// The container's id, unique on this machine.
    pub id: String,
    /// The directory.
    pub dir: PathBuf,
    rootfs: PathBuf,
    log: Log,
}

impl Bundle {
    /// Writes the bundle of a container called `name` within the fixture.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn make(fixture: &Fixture, name: &str, spec: &Spec) -> Result<Self> {
        let id = fixture.id(name);
        let dir = fixture.bundles().join(&id);
        let work = fixture.dir().join("root").join(&id);
        fs::create_dir_all(&work)?;
        DirBuilder::new().mode(0o700).create(&dir).context(format!("making {}", dir.display()))?;
        DirBuilder::new().mode(0o711).create(dir.join("rootfs"))?;
        symlink(&work, dir.join("work"))?;
        let marked = spec.clone().env(&fixture.mark()).cgroup(&format!("/{id}"));
        fs::write(dir.join("config.json"), marked.to_json())?;
        let log = Log::open(&dir.join("log"))?;
        Ok(Self { id, dir, rootfs: fixture.rootfs()?, log })
    }

    /// Changes a value of `config.json` after the bundle has marked it as its own.
    ///
    /// # Errors
    /// When there is no such value, by its JSON pointer, or the file cannot be written.
    pub fn respecify(&self, pointer: &str, value: serde_json::Value) -> Result {
        let file = self.dir.join("config.json");
        let mut spec: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
        let place = spec.pointer_mut(pointer);
        *place.ok_or_else(|| Failure::new(format!("no {pointer} in the spec")))? = value;
        Ok(fs::write(file, spec.to_string())?)
    }

    /// The mounts that make the root filesystem, as a snapshotter would give them.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let mut mount = Mount::new();
        mount.type_ = "bind".to_owned();
        mount.source = self.rootfs.display().to_string();
        mount.options = vec!["rbind".to_owned(), "rw".to_owned()];
        vec![mount]
    }

    /// A file of the bundle as text; nothing when there is none.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok()
    }

    /// The bundle's path in text, as requests carry it.
    #[must_use]
    pub fn path(&self) -> String {
        self.dir.display().to_string()
    }

    /// What the shim wrote to its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Stops reading the log: its pipe fills up, as when the daemon hangs.
    pub fn stop_reading_log(&self) {
        self.log.stop();
    }
}

/// The log fifo, held open for reading and writing from before the shim starts, as the manager does.
#[derive(Debug)]
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    stop: Arc<Mutex<bool>>,
}

impl Log {
    fn open(path: &Path) -> Result<Self> {
        mkfifo(path, Mode::S_IRWXU).context("making the log fifo")?;
        let flags = nix::libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let log = Self { text: Arc::default(), stop: Arc::default() };
        let (text, stop) = (Arc::downgrade(&log.text), Arc::clone(&log.stop));
        std::thread::spawn(move || {
            // Ends with the bundle, whose drop takes the only strong reference.
            while let Some(text) = text.upgrade() {
                if !*lock(&stop) {
                    drain(&file, &mut lock(&text));
                }
                drop(text);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        Ok(log)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.text)).into_owned()
    }

    fn stop(&self) {
        *lock(&self.stop) = true;
    }
}

fn drain(mut file: &File, into: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while let Ok(count) = file.read(&mut buffer) {
        into.extend(buffer.iter().take(count));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
