//! `containerd-shim-runc-v2`: parses the command line and runs the action.
//!
//! The C library calls it directly. What Rust's runtime does before `main` would take 0.08 ms of each start's 1.0
//! (docs/performance.md), most of it for a message about stacks that overflow.
#![cfg_attr(not(test), no_main)]
#![cfg_attr(not(test), expect(unsafe_code, reason = "the C library knows its entry point by name"))]

use std::io::{self, Write};

use shim_runc::{
    boot::{
        self, End,
        args::{Args, ArgsError, USAGE},
    },
    error::shorten,
    sys::process,
};
use small_heap::BySize;

#[global_allocator]
static ALLOCATOR: BySize = BySize;

/// The longest reason that is told; stdin, which it may quote, can have 10 MiB.
const MAX_MESSAGE: usize = 32 << 10;

// SAFETY: no other function has this name, and C's `int main(void)` has this form.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main() -> i32 {
    process::begin();
    run() as i32
}

fn run() -> End {
    let args = match Args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(ArgsError::Help) => return told(USAGE, End::Failure),
        Err(ArgsError::Usage(message)) => return failed(&message, End::Misuse),
        Err(ArgsError::Missing(message)) => return failed(message, End::Failure),
    };
    boot::run(args).unwrap_or_else(|error| failed(&error.to_string(), End::Failure))
}

/// One line on stderr: for `start` and `delete` the manager passes it on as the reason.
fn failed(message: &str, end: End) -> End {
    let mut message = message.replace('\n', " ");
    shorten(&mut message, MAX_MESSAGE);
    told(&format!("io.containerd.runc.v2: {message}\n"), end)
}

fn told(text: &str, end: End) -> End {
    // With stderr closed there is nobody to tell.
    let _ = io::stderr().write_all(text.as_bytes());
    end
}
