//! The runtime's own log of a container, `log.json` in its bundle: one JSON object after the other, each on a line of its
//! own, or spread over several, as by crun 1.28.

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use serde::Deserialize;

use crate::files;

/// How much of the end of a log is read, in bytes. The last error is what counts, and a runtime in
/// debug mode writes a lot before it.
const MAX_TAIL: u64 = 256 << 10;

/// A point in a log: errors before it belong to earlier calls.
pub(super) struct LogMark<'a> {
    path: &'a Path,
    offset: u64,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    level: String,
    #[serde(default)]
    msg: String,
}

impl<'a> LogMark<'a> {
    /// The present end of the log.
    pub(super) fn now(path: &'a Path) -> Self {
        let offset = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        Self { path, offset }
    }

    /// The last error since the mark, or why there is none to be had.
    pub(super) fn last_error(&self) -> io::Result<Option<String>> {
        let mut file = match files::open(self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let end = file.metadata()?.len();
        // A log that has shrunk was replaced.
        let begin = if self.offset <= end { self.offset } else { 0 };
        file.seek(SeekFrom::Start(begin.max(end.saturating_sub(MAX_TAIL))))?;
        let mut tail = Vec::new();
        file.take(MAX_TAIL).read_to_end(&mut tail)?;
        Ok(last_error(&tail))
    }
}

/// The message of the last entry of level `error`; what is no JSON object is passed over.
pub(crate) fn last_error(log: &[u8]) -> Option<String> {
    let mut last = None;
    let mut rest = log;
    while !rest.is_empty() {
        let mut entries = serde_json::Deserializer::from_slice(rest).into_iter::<Entry>();
        let read = match entries.next() {
            Some(Ok(entry)) => {
                if entry.level == "error" {
                    last = Some(entry.msg.trim().to_owned());
                }
                entries.byte_offset()
            }
            // Half an entry, or none at all: the next one may begin on the next line.
            Some(Err(_)) => {
                rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1)
            }
            None => break,
        };
        rest = rest.get(read..).unwrap_or_default();
    }
    last
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_error_counts() {
        let log = br#"{"level":"error","msg":"first","time":"t"}
{"level":"error","msg":" second \n","time":"t"}
{"level":"warning","msg":"later"}
not json
{"level":"error","ms"#;
        assert_eq!(last_error(log).as_deref(), Some("second"));
        let spread =
            b"{\n  \"msg\": \"no such thing\",\n  \"level\": \"error\",\n  \"time\": \"t\"\n}\n";
        assert_eq!(last_error(spread).as_deref(), Some("no such thing"));
        let cut = [&spread[4..], spread, b"{\"level\":\"info\"}"].concat();
        assert_eq!(last_error(&cut).as_deref(), Some("no such thing"));
        assert_eq!(last_error(b""), None);
        assert_eq!(last_error(b"{}\n[]\nnull"), None);
    }

    #[test]
    fn errors_of_earlier_calls_are_not_this_calls() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.json");
        assert_eq!(LogMark::now(&path).last_error().unwrap(), None);
        std::fs::write(&path, "{\"level\":\"error\",\"msg\":\"stale\"}\n").unwrap();
        let mark = LogMark::now(&path);
        assert_eq!(mark.last_error().unwrap(), None);
        std::fs::write(&path, "{\"level\":\"error\",\"msg\":\"new\"}\n").unwrap();
        assert_eq!(LogMark { path: &path, offset: 1000 }.last_error().unwrap().unwrap(), "new");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = last_error(&bytes);
        }
    }
}
