//! Gives a child descriptors at the numbers its protocol names.

#![expect(unsafe_code, reason = "descriptors are put in place between fork and exec")]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::Command,
};

use nix::fcntl::{FcntlArg, fcntl};

/// First of the numbers that are handed out.
const FIRST: i32 = 3;

/// Occupies the numbers that a child is to get, for as long as the child is being spawned.
///
/// The standard library reports a failed exec through a pipe of its own. Were that pipe to get one
/// of our numbers, putting ours in place would silence it, and a failed exec would look like success.
#[derive(Debug)]
pub(super) struct Reserved {
    _placeholders: Vec<OwnedFd>,
}

/// Makes `command` start with `descriptors` at 3 and up. Hold the result until it was spawned.
pub(super) fn pass_descriptors<const N: usize>(
    command: &mut Command,
    descriptors: [OwnedFd; N],
) -> io::Result<Reserved> {
    let end = FIRST + i32::try_from(N).map_err(io::Error::other)?;
    let mut above = Vec::with_capacity(N);
    for descriptor in descriptors {
        above.push(duplicate(&descriptor, end)?);
    }
    let reserved = reserve(end)?;
    let place = move || {
        for (number, descriptor) in (FIRST..).zip(&above) {
            put(descriptor, number)?;
        }
        Ok(())
    };
    // SAFETY: the closure runs in the child between fork and exec and does nothing there but
    // dup2(2), which is async-signal-safe; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(place) };
    Ok(reserved)
}

/// Duplicates to a number not below `minimum`, closed on exec.
fn duplicate(descriptor: &OwnedFd, minimum: i32) -> io::Result<OwnedFd> {
    let number = fcntl(descriptor, FcntlArg::F_DUPFD_CLOEXEC(minimum))?;
    // SAFETY: fcntl(2) has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn reserve(end: i32) -> io::Result<Reserved> {
    let null = OwnedFd::from(File::open("/dev/null")?);
    let mut placeholders = Vec::new();
    loop {
        let placeholder = duplicate(&null, FIRST)?;
        if placeholder.as_raw_fd() >= end {
            break;
        }
        placeholders.push(placeholder);
    }
    if null.as_fd().as_raw_fd() < end {
        placeholders.push(null);
    }
    Ok(Reserved { _placeholders: placeholders })
}

/// Runs between fork and exec.
fn put(descriptor: &OwnedFd, number: i32) -> io::Result<()> {
    // SAFETY: dup2(2) only changes the child's descriptor table. What `number` held there is either
    // a placeholder or closed on exec, and no value of the child will be dropped before exec.
    let result = unsafe { libc::dup2(descriptor.as_raw_fd(), number) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
