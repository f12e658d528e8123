//! A terminal for a program that insists on one.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use nix::pty::openpty;
use tokio::process::{Child, Command};

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};

/// A program on a terminal, and this end of it.
#[derive(Debug)]
pub struct OnTerminal {
    child: Child,
    master: File,
}

impl OnTerminal {
    /// Runs a command with a new terminal as its three streams.
    ///
    /// # Errors
    /// When there is no terminal to be had, or the command cannot be run.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let pair = openpty(None, None)?;
        let slave = File::from(pair.slave);
        command.stdin(Stdio::from(slave.try_clone()?));
        command.stdout(Stdio::from(slave.try_clone()?)).stderr(Stdio::from(slave));
        let child = command.spawn().context("starting a program on a terminal")?;
        // The command holds the other end open as long as it exists.
        drop(command);
        Ok(Self { child, master: File::from(pair.master) })
    }

    /// Types, then reads to the end of the program; gives its exit code and everything that was shown.
    ///
    /// # Errors
    /// When the program does not end.
    pub async fn converse(mut self, typed: &str) -> Result<(Option<i32>, String)> {
        self.master.write_all(typed.as_bytes())?;
        let mut master = self.master;
        let shown = tokio::task::spawn_blocking(move || {
            let (mut all, mut part) = (Vec::new(), [0; 4096]);
            // The end of a terminal is an error, EIO.
            while let Ok(count @ 1..) = master.read(&mut part) {
                all.extend(part.iter().take(count));
            }
            String::from_utf8_lossy(&all).into_owned()
        });
        let end = tokio::time::timeout(HANG, self.child.wait()).await;
        let status =
            end.map_err(|_| Failure::new("the program on the terminal does not end"))??;
        Ok((status.code(), shown.await?))
    }
}
