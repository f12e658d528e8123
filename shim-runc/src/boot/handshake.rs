//! The word at which a shim that was forked begins to serve.
//!
//! It is the last thing that its starter does: nothing can fail any more once others may have joined the shim, and a
//! shim whose starter was killed on the way notices and ends.

use std::io::{self, PipeReader, PipeWriter, Read, Write};

/// The starter's end.
#[derive(Debug)]
pub(super) struct ToShim(PipeWriter);

/// The shim's end.
#[derive(Debug)]
pub(super) struct ToStarter(PipeReader);

/// Both ends. The shim drops the starter's: only then does it notice that the starter is gone.
pub(super) fn pair() -> io::Result<(ToShim, ToStarter)> {
    let (reader, writer) = io::pipe()?;
    Ok((ToShim(writer), ToStarter(reader)))
}

impl ToShim {
    /// Lets the shim serve.
    pub(super) fn serve(mut self) -> io::Result<()> {
        self.0.write_all(&[0])
    }
}

impl ToStarter {
    /// Waits for the word to serve; an error when the starter has ended without it.
    pub(super) fn wait_for_word(mut self) -> io::Result<()> {
        self.0.read_exact(&mut [0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_serves_at_the_starters_word_and_not_without() {
        let (to_shim, to_starter) = pair().unwrap();
        to_shim.serve().unwrap();
        to_starter.wait_for_word().unwrap();
        let (to_shim, to_starter) = pair().unwrap();
        drop(to_shim);
        assert!(to_starter.wait_for_word().is_err());
        let (to_shim, to_starter) = pair().unwrap();
        drop(to_starter);
        assert!(to_shim.serve().is_err());
    }
}
