//! `containerd-shim-runc-v2`: parses the command line and runs the action.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use shim_runc::{
    boot::{
        self,
        args::{Args, ArgsError, USAGE},
    },
    error::shorten,
    sys::memory::BySize,
};

#[global_allocator]
static ALLOCATOR: BySize = BySize;

/// The longest reason that is told; stdin, which it may quote, can have 10 MiB.
const MAX_MESSAGE: usize = 32 << 10;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(ArgsError::Help) => return told(USAGE, ExitCode::FAILURE),
        Err(ArgsError::Usage(message)) => return failed(&message, ExitCode::from(2)),
        Err(ArgsError::Missing(message)) => return failed(message, ExitCode::FAILURE),
    };
    boot::run(args).unwrap_or_else(|error| failed(&error.to_string(), ExitCode::FAILURE))
}

/// One line on stderr: for `start` and `delete` the manager passes it on as the reason.
fn failed(message: &str, code: ExitCode) -> ExitCode {
    let mut message = message.replace('\n', " ");
    shorten(&mut message, MAX_MESSAGE);
    told(&format!("io.containerd.runc.v2: {message}\n"), code)
}

fn told(text: &str, code: ExitCode) -> ExitCode {
    // With stderr closed there is nobody to tell.
    let _ = io::stderr().write_all(text.as_bytes());
    code
}
