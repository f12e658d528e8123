//! What the words of an OCI runtime mean. The only place of the shim that reads error text.
//!
//! runc and crun say why a call failed in prose and nothing else: no exit codes, no fields.

use std::{ffi::OsStr, io};

use runtime_proto::errdefs::Code;

use crate::{error::Error, reaper::Exit};

/// A failed call in the runtime's own words.
pub(crate) fn told(
    doing: &str,
    logged: &io::Result<Option<String>>,
    binary: &OsStr,
    exit: Exit,
    output: &[u8],
) -> Error {
    let binary = binary.to_string_lossy();
    let printed = String::from_utf8_lossy(output);
    let printed = printed.trim();
    let ended = || {
        let how = match exit.status {
            status @ 129..=192 => format!("signal {}", status - 128),
            status => format!("exit status {status}"),
        };
        format!("{binary} did not terminate successfully: {how}: {printed}")
    };
    let text = match logged {
        Ok(Some(message)) => message.clone(),
        Ok(None) => ended(),
        Err(why) => format!("unable to retrieve OCI runtime error ({why}): {}", ended()),
    };
    let meaning = Meaning::of(&text);
    let meaning = if meaning == Meaning::Other { Meaning::of(printed) } else { meaning };
    Error::new(meaning.code(), format!("{doing}: {text}"))
}

/// What a failed call says about the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The runtime does not know the container.
    NoContainer,
    /// The process that was to be signalled has ended.
    Finished,
    /// Anything else.
    Other,
}

impl Meaning {
    fn of(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&["container does not exist", "\" does not exist", "` does not exist"])
            // crun, when the directory of the container's state is gone; the second one at delete.
            || (has(&["/status`", "cannot open directory"])
                && text.contains("no such file or directory"))
        {
            Meaning::NoContainer
        } else if has(&[
            "process already finished",
            "container not running",
            "container is not running",
            "is not running",
            "no such process",
        ]) {
            Meaning::Finished
        } else {
            Meaning::Other
        }
    }

    fn code(self) -> Code {
        match self {
            Meaning::NoContainer => Code::NotFound,
            Meaning::Finished => Code::FailedPrecondition,
            Meaning::Other => Code::Unknown,
        }
    }
}

/// A failed kill told as clients know it: whatever is gone is "not found".
pub fn of_kill(error: Error) -> Error {
    match error.kind() {
        Code::NotFound => Error::new(Code::NotFound, "no such container"),
        Code::FailedPrecondition => Error::new(Code::NotFound, "process already finished"),
        _ => error.within("unknown error after kill"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As printed by runc 1.1.5, 1.1.15, 1.3 and crun 1.8.1, 1.21, 1.28 on these calls.
    #[test]
    fn texts_of_runtimes() {
        let cases = [
            ("container does not exist", Meaning::NoContainer),
            ("container \"x\" does not exist", Meaning::NoContainer),
            ("container `x` does not exist", Meaning::NoContainer),
            ("cannot open `/run/crun/x/status`: No such file or directory", Meaning::NoContainer),
            (
                "cannot open directory '/run/crun/x': No such file or directory",
                Meaning::NoContainer,
            ),
            (
                "cannot open directory `/run/crun/x`: No such file or directory",
                Meaning::NoContainer,
            ),
            ("container not running", Meaning::Finished),
            ("os: process already finished", Meaning::Finished),
            ("unable to signal init: os: process already finished", Meaning::Finished),
            ("kill container: No such process", Meaning::Finished),
            ("container `x` is not running", Meaning::Finished),
            ("cannot exec in a stopped container", Meaning::Other),
            ("exec: \"nope\": no such file or directory", Meaning::Other),
            (
                "executable file `nope` not found in $PATH: No such file or directory",
                Meaning::Other,
            ),
        ];
        for (text, meaning) in cases {
            assert_eq!(Meaning::of(text), meaning, "{text}");
        }
    }

    #[test]
    fn failures_are_told_with_what_there_is() {
        let exit = Exit { status: 1, at: std::time::SystemTime::now() };
        let tell = |logged: io::Result<Option<String>>, output: &str| {
            let runc = OsStr::new("runc");
            told("OCI runtime create failed", &logged, runc, exit, output.as_bytes()).to_string()
        };
        assert_eq!(
            tell(Ok(Some("no such thing".into())), "noise"),
            "OCI runtime create failed: no such thing"
        );
        assert_eq!(
            tell(Ok(None), "words\n"),
            "OCI runtime create failed: runc did not terminate successfully: exit status 1: words"
        );
        let unreadable = tell(Err(io::Error::other("disk")), "words");
        assert!(unreadable.contains("unable to retrieve OCI runtime error (disk)"), "{unreadable}");
    }

    #[test]
    fn kills_of_what_is_gone_are_not_found() {
        for kind in [Code::NotFound, Code::FailedPrecondition] {
            assert_eq!(of_kill(Error::new(kind, "x")).kind(), Code::NotFound);
        }
        let other = of_kill(Error::new(Code::Unknown, "boom"));
        assert_eq!(other.to_string(), "unknown error after kill: boom");
    }
}
