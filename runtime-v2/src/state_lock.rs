//! One manager per state directory: two would both clean up what the other has just made.
//!
//! The lock tells one thing more. A process that a manager has forked holds it too, until it
//! executes something else. So whoever gets the lock knows that no `start` of an earlier manager,
//! killed at whatever moment, has yet to begin: each one shows in /proc as what it is, or has ended.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
};
use runtime_proto::errdefs::Code;

use crate::{
    error::{Error, Result},
    procfs,
};

/// Beside the bundles; no identifier begins with a dot, so it is none.
const NAME: &str = ".lock";

/// For a manager of this process that was dropped and has yet to let go.
const LIVING_TIMEOUT: Duration = Duration::from_secs(1);

/// For what a dead manager has forked to execute something; on a node that swaps this takes a while.
const DEAD_TIMEOUT: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(1);

/// The claim on a state directory. The kernel gives it back when the process ends, however.
#[derive(Debug)]
pub struct StateLock {
    _file: Flock<File>,
}

impl StateLock {
    /// Claims `state`, which is made if it is not there. Waits for what an earlier manager that
    /// was killed has left behind; one that lives is waited for a moment only.
    ///
    /// # Errors
    /// `FailedPrecondition` when another manager has claimed it, with its pid.
    pub fn take(state: &Path) -> Result<Self> {
        let failed = |error| Error::io(format!("claim state directory {}", state.display()), error);
        make(state).map_err(failed)?;
        let mut file = open(&state.join(NAME)).map_err(failed)?;
        let begun = Instant::now();
        loop {
            let mut refused = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut locked) => {
                    // For a better message only; a disk that is full is no reason not to begin.
                    let _ = sign(&mut locked);
                    return Ok(Self { _file: locked });
                }
                Err((refused, Errno::EWOULDBLOCK | Errno::EINTR)) => refused,
                Err((_, errno)) => return Err(failed(errno.into())),
            };
            let holder = holder(&mut refused);
            let limit = if holder.is_some_and(|pid| procfs::stat(pid).is_some()) {
                LIVING_TIMEOUT
            } else {
                DEAD_TIMEOUT
            };
            if begun.elapsed() > limit {
                let holder = holder.map(|pid| format!(" {pid}")).unwrap_or_default();
                let text =
                    format!("state directory {} is used by process{holder}", state.display());
                return Err(Error::new(Code::FailedPrecondition, text));
            }
            file = refused;
            thread::sleep(PAUSE);
        }
    }
}

/// Says who has the lock.
fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

fn make(state: &Path) -> io::Result<()> {
    if let Some(parent) = state.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(0o711).create(state) {
        // Set again, since the umask had its say.
        Ok(()) => fs::set_permissions(state, fs::Permissions::from_mode(0o711)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens the file, or makes it. On a disk that has become read-only the one that is there can be
/// locked all the same, and what runs is found again.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    let mut making = options.clone();
    let made = making.write(true).create(true).truncate(false).mode(0o600).open(path);
    match made {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            options.open(path).map_err(|_| error)
        }
        made => made,
    }
}

/// Who says to have the lock.
fn holder(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_directory_has_one_manager_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        let first = StateLock::take(&state).unwrap();
        let refused = StateLock::take(&state).unwrap_err();
        assert_eq!(refused.kind(), Code::FailedPrecondition);
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        drop(first);
        StateLock::take(&state).unwrap();
    }

    #[test]
    fn what_a_dead_manager_has_forked_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(NAME);
        // Stands for the fork: it has the lock, and its manager is dead.
        let script = "exec 9<> .lock; flock 9; echo 999999999 >&9; echo; read line";
        let mut fork = Command::new("/bin/sh")
            .args(["-c", script])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        fork.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let state = dir.path().to_path_buf();
        let waiting = thread::spawn(move || StateLock::take(&state).map(drop));
        // Longer than for a living one; a wait that is cut short shows by its error.
        thread::sleep(2 * LIVING_TIMEOUT);
        assert!(!waiting.is_finished());
        drop(fork.stdin.take());
        waiting.join().unwrap().unwrap();
        assert_eq!(fs::read_to_string(lock).unwrap(), format!("{}\n", std::process::id()));
        fork.wait().unwrap();
    }
}
