//! Programs other than the OCI runtime: logging binaries, and helpers that make mounts. They are
//! started, and waited for, through the reaper like everything else.

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio},
};

use nix::sys::signal::Signal;
use runtime_proto::errdefs::Code;
use tokio::runtime::Handle;

use crate::{
    error::{Error, Result},
    io::{ExitFuture, Spawn, Spawned},
    mount::MountHelper,
    reaper::{Child, Reaper},
};

impl Spawn for Reaper {
    fn spawn(&self, mut command: Command) -> io::Result<Box<dyn Spawned>> {
        Ok(Box::new(Self::spawn(self, &mut command)?))
    }
}

impl Spawned for Child {
    fn kill(&self, signal: Signal) -> io::Result<()> {
        Self::kill(self, signal)
    }

    fn exited(&self) -> ExitFuture<'_> {
        Box::pin(async {
            let exit = self.ended().await;
            // The form in which wait(2) has a code from 0 to 255.
            ExitStatus::from_raw((exit.status.cast_signed() & 0xff) << 8)
        })
    }
}

/// Runs mount helpers, on a thread for blocking work.
#[derive(Debug)]
pub struct MountPrograms {
    reaper: Reaper,
    runtime: Handle,
}

impl MountPrograms {
    /// Helpers that this reaper waits for; to be made within its runtime.
    pub fn new(reaper: &Reaper) -> Self {
        Self { reaper: reaper.clone(), runtime: Handle::current() }
    }
}

impl MountHelper for MountPrograms {
    fn run(&self, program: &str, arguments: &[OsString]) -> Result<()> {
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = self
            .reaper
            .spawn(&mut command)
            .map_err(|error| Error::io(format!("start {program}"), error))?;
        let exit = self.runtime.block_on(child.ended());
        if exit.success() {
            return Ok(());
        }
        Err(Error::new(Code::Unknown, format!("{program} ended with status {}", exit.status)))
    }
}
