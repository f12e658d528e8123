//! The actions of the binary: `start`, `delete`, serving, `-info`, `-v`.
//!
//! * `args`: the command line.
//! * `socket` and `probe`: binding the socket of a group, or asking who has it already.
//! * `aside`: work that may hang, in a process of its own.
//! * `handshake`: between a starter and the shim that it has forked.
//! * `address`: the file that older containerds look for.
//! * `start`, `serve`, `delete`, `info`: the actions.

mod address;
pub mod args;
mod aside;
mod delete;
mod handshake;
mod info;
pub(crate) mod probe;
mod serve;
pub mod socket;
mod start;

use std::{
    fs::File,
    io::{self, Read, Write},
};

use runtime_proto::bootstrap::MAX_STDIN;

use crate::error::{Error, Result};
use args::{Action, Args};

/// What is said of the binary where a name and a version are asked for.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the process ends with, by its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All is done.
    Success = 0,
    /// Something is not, and stderr says why.
    Failure = 1,
    /// The command line is not understood, as Go's flag package has it.
    Misuse = 2,
}

/// Does what the command line says.
///
/// # Errors
/// What is to be told on stderr; the exit code is 1 then.
pub fn run(args: Args) -> Result<End> {
    match args.action {
        Action::Version => print(version(&args.program).as_bytes())?,
        Action::Info => info::info()?,
        Action::Start => return about(&args.id.clone(), "start", start::start(args)),
        Action::Delete => about(&args.id, "delete", delete::delete(&args))?,
        Action::Serve => about(&args.id.clone(), "serve", serve::inherited(args))?,
    }
    Ok(End::Success)
}

/// Puts in front of a failure what was asked of us, and for whom.
fn about<T>(id: &str, action: &str, done: Result<T>) -> Result<T> {
    done.map_err(|error| error.within(format_args!("{action} for container {id}")))
}

fn version(program: &str) -> String {
    let revision = option_env!("SHIM_REVISION").unwrap_or("unknown");
    format!("{program}:\n  Version:  {VERSION}\n  Revision: {revision}\n\n")
}

/// Writes to stdout, which is protocol: all of it or an error.
fn print(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Error::io("write to stdout", error))
}

/// Puts /dev/null in the place of our streams, so that nobody waits for these to close.
fn leave_streams() -> Result<()> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| Error::io("open /dev/null", error))?;
    nix::unistd::dup2_stdin(&null).map_err(|errno| Error::io("replace stdin", errno))?;
    nix::unistd::dup2_stdout(&null).map_err(|errno| Error::io("replace stdout", errno))?;
    nix::unistd::dup2_stderr(&null).map_err(|errno| Error::io("replace stderr", errno))
}

/// Reads stdin to its end, or to just over the size that is refused.
fn read_stdin() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_STDIN).unwrap_or(u64::MAX).saturating_add(1);
    io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io("read stdin", error))?;
    Ok(bytes)
}
