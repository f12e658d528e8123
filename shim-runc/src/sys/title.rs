//! The command line that `ps` shows for a process which forked without exec.
#![expect(unsafe_code, reason = "the kernel reads the command line from the memory of argv")]

use std::{ffi::OsString, io, os::unix::ffi::OsStrExt};

/// Fields 48 and 49 of /proc/self/stat: where the arguments begin and end.
const ARG_START_AFTER_COMM: usize = 45;

/// Replaces the visible arguments by `args`, cut to the room that the original ones took.
///
/// The memory behind `std::env::args` changes with it, so this is called once, when the arguments
/// have been read for the last time.
///
/// # Errors
/// When /proc cannot be read.
pub fn set(args: &[OsString]) -> io::Result<()> {
    let (start, end) = argument_area()?;
    let room = end.saturating_sub(start);
    let mut text: Vec<u8> = Vec::with_capacity(room);
    for arg in args {
        text.extend_from_slice(arg.as_bytes());
        text.push(0);
    }
    text.resize(room, 0);
    // The area must end in a NUL, or the kernel takes it for a title that runs on into the
    // environment.
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    let target = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the kernel put the arguments there, `room` bytes of writable stack that live as long
    // as the process; nothing else refers to them now (see above), and `text` is elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), target, room) };
    Ok(())
}

fn argument_area() -> io::Result<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold spaces; count from behind it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(ARG_START_AFTER_COMM);
    let mut next = || fields.next().and_then(|field| field.parse().ok());
    match (next(), next()) {
        (Some(start), Some(end)) => Ok((start, end)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat is too short")),
    }
}
