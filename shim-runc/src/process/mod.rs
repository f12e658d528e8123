//! A process of a container: what is known of it, and the locks that order what is done to it.

pub mod state;

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::unistd::Pid;
use runtime_proto::errdefs::Code;
use tokio::sync::watch;

use crate::{
    error::{Error, Result},
    files,
    io::ProcessIo,
    reaper::{Adopted, Claim, Exit},
    sys::process::{PidFd, is_unreaped_child, kill},
};

/// The largest pid file that is read, in bytes: a number and some white space.
const MAX_PID_FILE: u64 = 4096;

/// Where the standard streams of a process are, as the client named them.
#[derive(Debug, Clone, Default)]
pub struct Stdio {
    /// URI or path; empty for none.
    pub stdin: String,
    /// Likewise.
    pub stdout: String,
    /// Likewise.
    pub stderr: String,
    /// The process has a terminal.
    pub terminal: bool,
}

/// What can be seen of a process without waiting for anything.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<S> {
    /// Its state.
    pub state: S,
    /// Its pid, also after its end; 0 before it has one.
    pub pid: u32,
    /// How it ended. Set with a process that will never run, too, so that nobody waits for it.
    pub exit: Option<Exit>,
}

/// A process whose states are `S`.
#[derive(Debug)]
pub struct Process<S> {
    /// The container's id for its init, else the id of the exec.
    pub id: String,
    /// Its streams.
    pub stdio: Stdio,
    /// Held by whatever changes the process, one at a time. Not by signals: they must get through
    /// while something else hangs.
    pub op: tokio::sync::Mutex<()>,
    /// Held from before the process can run until its start was published, and by whoever
    /// publishes its exit: so the two are in order. Taken after `op` where both are.
    pub start_gate: tokio::sync::Mutex<()>,
    snapshot: watch::Sender<Snapshot<S>>,
    // Both are set once, when the process starts, and cleared once; never locked over an await.
    io: Mutex<Option<Arc<ProcessIo>>>,
    handle: Mutex<Option<PidFd>>,
}

impl<S: Copy> Process<S> {
    /// A process in its first state.
    pub fn new(id: &str, stdio: Stdio, state: S) -> Self {
        Self {
            id: id.to_owned(),
            stdio,
            op: tokio::sync::Mutex::default(),
            start_gate: tokio::sync::Mutex::default(),
            snapshot: watch::Sender::new(Snapshot { state, pid: 0, exit: None }),
            io: Mutex::default(),
            handle: Mutex::default(),
        }
    }

    /// What can be seen now.
    pub fn snapshot(&self) -> Snapshot<S> {
        *self.snapshot.borrow()
    }

    /// Changes what can be seen, and wakes those who wait for it.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot<S>)) {
        self.snapshot.send_modify(change);
    }

    /// Waits for the end of the process. What waits keeps nothing of the process alive.
    pub fn exited(&self) -> impl Future<Output = Exit> + use<S> {
        let mut snapshot = self.snapshot.subscribe();
        async move {
            loop {
                if let Some(exit) = snapshot.borrow_and_update().exit {
                    return exit;
                }
                if snapshot.changed().await.is_err() {
                    // A process is not forgotten before its end was set; then there is nothing to wait for.
                    return Exit { status: 255, at: std::time::SystemTime::now() };
                }
            }
        }
    }

    /// The streams, while there are any.
    pub fn io(&self) -> Option<Arc<ProcessIo>> {
        lock(&self.io).clone()
    }

    /// Hands the streams over to the process.
    pub fn set_io(&self, io: ProcessIo) {
        *lock(&self.io) = Some(Arc::new(io));
    }

    /// Releases the streams.
    pub async fn close_io(&self) {
        let io = lock(&self.io).take();
        if let Some(io) = io {
            io.close().await;
        }
    }

    /// Sets the handle for signals.
    pub fn set_handle(&self, handle: Option<PidFd>) {
        *lock(&self.handle) = handle;
    }

    /// Sends a signal to the process itself.
    ///
    /// # Errors
    /// NotFound when it has ended, InvalidArgument when there is no such signal.
    pub fn signal(&self, signal: u32) -> Result<()> {
        use nix::errno::Errno;
        let invalid = || Error::new(Code::InvalidArgument, format!("invalid signal {signal}"));
        let number = i32::try_from(signal).map_err(|_| invalid())?;
        let pid = i32::try_from(self.snapshot().pid).unwrap_or(0);
        let sent = match &*lock(&self.handle) {
            Some(handle) => handle.send(number),
            // A kernel without pidfds (before Linux 5.3). The pid is the process's own until the
            // reaper has collected it, which happens on this thread and so not in between.
            None if pid > 0
                && self.snapshot().exit.is_none()
                && is_unreaped_child(Pid::from_raw(pid)) =>
            {
                kill(Pid::from_raw(pid), number)
            }
            None => Err(Errno::ESRCH),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(Errno::ESRCH) => Err(Error::new(Code::NotFound, "process already finished")),
            Err(Errno::EINVAL) => Err(invalid()),
            Err(errno) => Err(Error::io(format!("send signal {signal}"), errno)),
        }
    }
}

/// Locks one of the small maps and slots of a process or container.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds one of these can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pid in a pid file. Those of nobody (0), of groups (below 0) and of the node's init (1) are
/// never a container's.
pub(crate) fn parse_pid(text: &str) -> Option<i32> {
    text.trim().parse().ok().filter(|pid| *pid > 1)
}

/// Reads a pid file, which the runtime has written and nobody has looked at.
pub(crate) fn read_pid_file(path: &Path) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&files::read(path, MAX_PID_FILE)?).into_owned())
}

/// Reads the pid that the runtime has written, and adopts the process.
///
/// # Errors
/// When there is no pid, or it is not that of a new child of the shim.
pub fn adopt(claim: &Claim, pid_file: &Path) -> Result<(u32, Adopted)> {
    let named = || format!("pid file {}", pid_file.display());
    let text = read_pid_file(pid_file).map_err(|error| Error::io(named(), error))?;
    let pid = parse_pid(&text).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        Error::new(Code::Unknown, format!("{} holds {shown:?}, which is no pid", named()))
    })?;
    let adopted = claim.adopt(Pid::from_raw(pid)).ok_or_else(|| {
        Error::new(Code::Unknown, format!("{}: process {pid} is not the new one", named()))
    })?;
    Ok((pid.cast_unsigned(), adopted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_that_is_no_child_of_ours_gets_no_signal() {
        let process = Process::new("e", Stdio::default(), ());
        let error = process.signal(0).unwrap_err();
        assert_eq!(error.kind(), Code::NotFound, "it has no pid yet");
        // As after the exit was collected and the number used again: this process lives.
        process.update(|process| process.pid = std::process::id());
        assert_eq!(process.signal(0).unwrap_err().kind(), Code::NotFound);
    }
}
