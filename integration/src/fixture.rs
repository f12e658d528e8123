//! What one test has for itself: a name that nobody else has, directories, and the list of what it may leave traces of.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::bundle::Bundle;
use crate::failure::{Context, Result};
use crate::fakectrd::FakeContainerd;
use crate::leak::{MARKER, Scope};
use crate::paths;
use crate::rootfs;
use crate::spec::Spec;
use crate::stdio::Stdio;

/// Where shims of every containerd put their sockets unless told otherwise.
const SOCKETS: &str = "/run/containerd/s";

/// One test's ground.
#[derive(Debug)]
pub struct Fixture {
    token: String,
    dir: PathBuf,
    scope: Mutex<Scope>,
    rootfs: OnceLock<PathBuf>,
}

impl Fixture {
    /// Lays the ground. Its directory is short, because sockets lie in it and their paths are limited to 107 bytes.
    ///
    /// # Errors
    /// When a directory cannot be made.
    pub fn new() -> Result<Self> {
        let token = unique();
        let dir = PathBuf::from("/tmp").join(&token);
        let mut scope = Scope::of(&token);
        for name in ["tmp", "fifo", "bin", "s", "root"] {
            fs::create_dir_all(dir.join(name)).context(format!("making {}", dir.display()))?;
        }
        // Nothing may stay in the temporary directory of what is tested, nor in its socket directory.
        scope.places.extend([dir.join("tmp"), dir.join("s")]);
        let fixture = Self { token, dir, scope: Mutex::new(scope), rootfs: OnceLock::new() };
        fs::create_dir_all(fixture.bundles())?;
        fixture.offer("runc", &paths::runc()?)?;
        Ok(fixture)
    }

    /// The name that nobody else has; also the fixture's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.token
    }

    /// A container id that nobody else has.
    #[must_use]
    pub fn id(&self, name: &str) -> String {
        format!("{}-{name}", self.token)
    }

    /// The fixture's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file in the fixture's directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `NAME=value` by which processes are known to be this fixture's.
    #[must_use]
    pub fn mark(&self) -> String {
        format!("{MARKER}={}", self.token)
    }

    /// The parent of all bundles, in the manager's layout.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.dir.join("state/io.containerd.runtime.v2.task").join(&self.token)
    }

    /// containerd's gRPC address for shims that are started by hand: its name goes into hashes, nobody listens there.
    #[must_use]
    pub fn address(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// The address that shims publish their events to.
    #[must_use]
    pub fn events_address(&self) -> PathBuf {
        self.dir.join("c.sock.ttrpc")
    }

    /// A stand-in for containerd at the events address.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn fake_containerd(&self) -> Result<FakeContainerd> {
        FakeContainerd::listen(&self.events_address())
    }

    /// A root filesystem of busybox, made once.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn rootfs(&self) -> Result<PathBuf> {
        if let Some(made) = self.rootfs.get() {
            return Ok(made.clone());
        }
        let dir = self.dir.join("rootfs");
        rootfs::make(&dir)?;
        Ok(self.rootfs.get_or_init(|| dir).clone())
    }

    /// A bundle for a container called `name`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn bundle(&self, name: &str, spec: &Spec) -> Result<Bundle> {
        let bundle = Bundle::make(self, name, spec)?;
        for key in ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"] {
            if let Some(group) = spec.annotations().get(key).and_then(|value| value.as_str()) {
                self.expect_socket(&self.address(), group);
            }
        }
        self.expect_socket(&self.address(), &bundle.id);
        Ok(bundle)
    }

    /// Fifos for a process called `name`.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn fifos(&self, name: &str) -> Result<Stdio> {
        Stdio::fifos(&self.dir.join("fifo"), name)
    }

    /// The directory that comes first in the `PATH` of what the fixture starts.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Puts a program under a name into [`Self::bin`], in place of what had that name.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub fn offer(&self, name: &str, program: &Path) -> Result {
        let link = self.bin().join(name);
        let _ = fs::remove_file(&link);
        symlink(program, &link).context(format!("linking {}", link.display()))
    }

    /// `PATH` for what the fixture starts.
    #[must_use]
    pub fn path(&self) -> String {
        format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.bin().display()
        )
    }

    /// Notes that a shim for this group or container may come to exist, so that its socket is looked for in the end.
    pub fn expect_socket(&self, address: &Path, key: &str) {
        self.expect_socket_in(address, &self.token, key);
    }

    /// The same in a namespace that is not the fixture's own.
    pub fn expect_socket_in(&self, address: &Path, namespace: &str, key: &str) {
        let paths = socket_paths(address, namespace, key);
        self.lock_scope().sockets.extend(paths);
    }

    /// Notes a directory in which nothing may stay.
    pub fn expect_empty(&self, place: &Path) {
        self.lock_scope().places.push(place.to_path_buf());
    }

    /// What belongs to the fixture.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.lock_scope().clone()
    }

    fn lock_scope(&self) -> MutexGuard<'_, Scope> {
        self.scope.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sockets of a shim in the default directory: the one for tasks, and the one for debugging.
#[must_use]
pub fn socket_paths(address: &Path, namespace: &str, key: &str) -> Vec<PathBuf> {
    let name = address.join(namespace).join(key).display().to_string();
    let hash = |text: String| {
        let digest = Sha256::digest(text);
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    [name.clone(), format!("{name}/debug")].map(|text| Path::new(SOCKETS).join(hash(text))).to_vec()
}

/// Short, valid as a namespace and as an id, and not to be found within another: all have the same length.
fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("t{:07x}{:06x}{count:03x}", std::process::id(), since.as_micros() & 0xff_ffff)
}
