//! A shim for tests: obeys `start` and `delete`, serves the task service, and that of sandboxes if it is to be one; runs
//! nothing.
//!
//! What it does otherwise is in `fakeshim.json` beside the path it was started by, read anew for
//! every action and every call, so that a test can change it under a running shim (see
//! [`script::Script`]). What it was asked is appended to `calls.log` there, one line each.

mod events;
mod grpc;
mod sandbox;
mod script;
mod serve;
mod start;
mod tasks;

use std::{path::PathBuf, process::ExitCode};

/// The command line that containerd gives to shims.
#[derive(Debug, Default, Clone)]
pub(crate) struct Args {
    pub(crate) namespace: String,
    pub(crate) id: String,
    pub(crate) address: String,
    pub(crate) socket: String,
    pub(crate) action: String,
    pub(crate) info: bool,
    pub(crate) version: bool,
    /// Where the script and the log of calls are.
    pub(crate) home: PathBuf,
}

fn parse(mut words: impl Iterator<Item = String>) -> Args {
    let own = PathBuf::from(words.next().unwrap_or_default());
    let home = own.parent().map(PathBuf::from).unwrap_or_default();
    let mut args = Args { home, ..Args::default() };
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "-namespace" => args.namespace = value(),
            "-id" => args.id = value(),
            "-address" => args.address = value(),
            "-socket" => args.socket = value(),
            "-publish-binary" | "-bundle" => drop(value()),
            "-info" => args.info = true,
            "-v" => args.version = true,
            "-debug" => {}
            _ => args.action = word,
        }
    }
    args
}

fn main() -> ExitCode {
    let args = parse(std::env::args());
    let done = match args.action.as_str() {
        _ if args.version => start::version(&args),
        _ if args.info => start::info(&args),
        "start" => start::start(&args),
        "delete" => start::delete(&args),
        _ => serve::serve(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("fakeshim: {error}\n").as_bytes(),
            );
            ExitCode::FAILURE
        }
    }
}
