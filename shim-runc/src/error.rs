//! The error type that manager and shim share, and how much of a text is told.

pub use runtime_proto::error::{Error, Result};

/// Cuts a text that quotes what somebody else wrote to at most `most` bytes, and says so.
pub fn shorten(text: &mut String, most: usize) {
    const CUT: &str = " [...]";
    if text.len() > most {
        let mut end = most.saturating_sub(CUT.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(CUT);
    }
}
