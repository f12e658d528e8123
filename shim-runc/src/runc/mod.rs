//! The OCI runtime (runc, crun, or one that takes their arguments), called through the reaper.
//!
//! * `options`: which binary, where its state is, and how it is to behave; kept in the bundle.
//! * `verbs`: one method per sub-command.
//! * `log` and `error`: what a failed call has to say, and what that means.

pub mod error;
pub(crate) mod log;
pub mod options;
pub(crate) mod verbs;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use runtime_proto::errdefs::Code;
use tokio::{io::AsyncReadExt, net::unix::pipe};

use crate::{
    error::{Error, Result},
    io::{ChildEnd, ChildStdio, ProcessIo},
    reaper::{Child, Exit, Reaper},
    runc::{log::LogMark, options::RuncOptions},
    sys::process::die_with_parent,
};

pub use verbs::{CheckpointPaths, CreateArgs, ExecArgs, RestoreArgs};

/// How much of a call's own output is kept, in bytes; a list of pids of a large container fits.
const MAX_OUTPUT: usize = 4 << 20;

/// How much is read of it once the call has ended: more than a pipe holds, and not more than that of somebody who goes on
/// writing, as a hook may.
const MAX_REST: usize = 1 << 20;

/// The OCI runtime as one container uses it.
#[derive(Debug, Clone)]
pub struct Runc {
    binary: OsString,
    root: PathBuf,
    log: PathBuf,
    systemd_cgroup: bool,
    reaper: Reaper,
}

/// What a call's standard streams are.
enum Streams<'a> {
    /// Nothing in; what comes out is kept.
    Captured,
    /// These bytes in; what comes out is kept.
    Input(&'a [u8]),
    /// The container process's own streams, which the runtime hands on.
    Process(ProcessStreams<'a>),
}

/// The streams of a process that a call makes.
#[derive(Debug)]
pub struct ProcessStreams<'a> {
    /// The process's ends.
    pub child: ChildStdio,
    /// Ours.
    pub io: &'a ProcessIo,
}

impl Runc {
    /// The runtime for a container of this bundle.
    pub fn new(options: &RuncOptions, namespace: &str, bundle: &Path, reaper: Reaper) -> Self {
        Self {
            binary: options.binary().into(),
            root: options.root(namespace),
            log: bundle.join("log.json"),
            systemd_cgroup: options.systemd_cgroup,
            reaper,
        }
    }

    /// Calls a sub-command on a container, and tells its failure in the runtime's own words.
    async fn call(&self, doing: &str, args: &[OsString], streams: Streams<'_>) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.binary);
        command.arg("--root").arg(&self.root);
        command.arg("--log").arg(&self.log).args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command.args(args);
        let mark = LogMark::now(&self.log);
        let (exit, output) = self
            .run(command, streams)
            .await
            .map_err(|error| Error::caused(Code::Unknown, doing, self.start_failure(&error)))?;
        if exit.success() {
            return Ok(output);
        }
        Err(error::told(doing, &mark.last_error(), &self.binary, exit, &output))
    }

    /// Runs a command to its end.
    async fn run(&self, mut command: Command, streams: Streams<'_>) -> io::Result<(Exit, Vec<u8>)> {
        die_with_parent(&mut command);
        command.env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut output = None;
        let mut process = None;
        match streams {
            Streams::Captured => output = Some(capture(&mut command)?),
            Streams::Input(bytes) => {
                output = Some(capture(&mut command)?);
                command.stdin(input_file(bytes)?);
            }
            Streams::Process(ProcessStreams { child, .. }) if child.console_socket.is_some() => {
                // The process gets the terminal; the runtime's own words are ours to keep.
                output = Some(capture(&mut command)?);
            }
            Streams::Process(ProcessStreams { child, io }) => {
                command.stdin(end(child.stdin)).stdout(end(child.stdout)).stderr(end(child.stderr));
                process = Some(io);
            }
        }
        let child = Unfinished(self.reaper.spawn(&mut command)?);
        // Drops our copies of the child's ends, which a relay must see closed.
        drop(command);
        let mut kept = Vec::new();
        let exit = match output {
            None => child.0.ended().await,
            Some(pipe) => read_until_exit(pipe, &child.0, &mut kept).await,
        };
        if !exit.success()
            && let Some(io) = process
        {
            kept = io.last_words();
        }
        Ok((exit, kept))
    }

    /// A missing runtime, worded so that the name is seen.
    fn start_failure(&self, error: &io::Error) -> String {
        let name = self.binary.to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound if name.contains('/') => {
                format!("fork/exec {name}: no such file or directory")
            }
            io::ErrorKind::NotFound => {
                format!("exec: {name:?}: executable file not found in $PATH")
            }
            _ => format!("fork/exec {name}: {error}"),
        }
    }
}

/// A call of the runtime. When it is given up, the runtime is killed; one that has ended does not
/// notice.
struct Unfinished(Child);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // By its handle, which is never another process's.
        let _ = self.0.kill(Signal::SIGKILL);
    }
}

/// Gives the command a pipe for what it prints, and returns the other end.
fn capture(command: &mut Command) -> io::Result<pipe::Receiver> {
    let (ours, theirs) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    command.stdout(theirs.try_clone()?).stderr(theirs);
    nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
    pipe::Receiver::from_owned_fd(ours)
}

/// Reads what a child prints until it ends.
///
/// Not until the pipe closes: a container process or a hook may hold the other end for longer. What is too much to be kept
/// is read all the same, or the child would wait for that for ever.
async fn read_until_exit(mut pipe: pipe::Receiver, child: &Child, kept: &mut Vec<u8>) -> Exit {
    let mut piece = [0; 4096];
    let exit = loop {
        tokio::select! {
            exit = child.ended() => break exit,
            read = pipe.read(&mut piece) => match read {
                Ok(0) | Err(_) => return child.ended().await,
                Ok(count) => keep(kept, &piece[..count]),
            },
        }
    };
    // What was printed just before the end is in the pipe still.
    let mut rest = 0;
    while rest < MAX_REST
        && let Ok(count @ 1..) = pipe.try_read(&mut piece)
    {
        keep(kept, &piece[..count]);
        rest += count;
    }
    exit
}

fn keep(kept: &mut Vec<u8>, piece: &[u8]) {
    let room = MAX_OUTPUT.saturating_sub(kept.len());
    kept.extend_from_slice(&piece[..piece.len().min(room)]);
}

/// A file without a name that holds `bytes`, to be somebody's stdin.
fn input_file(bytes: &[u8]) -> io::Result<std::fs::File> {
    use std::io::Seek;
    let fd = nix::sys::memfd::memfd_create(c"input", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

fn end(end: ChildEnd) -> Stdio {
    match end {
        ChildEnd::Null => Stdio::null(),
        ChildEnd::Fd(fd) => fd.into(),
    }
}
