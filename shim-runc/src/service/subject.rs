//! Whom a call is about. Every failure of a call begins with it, in one place, so that whoever reads it in the log of a
//! node with a hundred pods knows whose it is.

use std::fmt;

use runtime_proto::task::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, CreateTaskRequest, DeleteRequest,
    ExecProcessRequest, KillRequest, PauseRequest, PidsRequest, ResizePtyRequest, ResumeRequest,
    ShutdownRequest, StartRequest, StateRequest, StatsRequest, UpdateTaskRequest, WaitRequest,
};

use crate::error::shorten;

/// The longest id that is told whole, in bytes. Longer ones are refused anyway.
const MAX_TOLD: usize = 256;

/// A container, or an exec in one, as the caller named it.
#[derive(Debug)]
pub(super) struct Subject {
    container: String,
    exec: String,
}

impl Subject {
    fn new(container: &str, exec: &str) -> Self {
        Self { container: told(container), exec: told(exec) }
    }
}

/// An id on its way into a text: of one that is none, whatever it contains.
fn told(id: &str) -> String {
    let mut told = if id.bytes().all(|byte| byte.is_ascii_graphic()) {
        id.to_owned()
    } else {
        id.escape_debug().to_string()
    };
    shorten(&mut told, MAX_TOLD);
    told
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.exec.is_empty() {
            write!(f, "exec {} of ", self.exec)?;
        }
        match self.container.as_str() {
            "" => f.write_str("container without id"),
            id => write!(f, "container {id}"),
        }
    }
}

/// A request, which names its subject.
pub(super) trait Named {
    /// Whom it is about.
    fn subject(&self) -> Subject;
}

macro_rules! named {
    (containers: $($of_container:ty)*; processes: $($of_process:ty)*;) => {
        $(impl Named for $of_container {
            fn subject(&self) -> Subject {
                Subject::new(&self.id, "")
            }
        })*
        $(impl Named for $of_process {
            fn subject(&self) -> Subject {
                Subject::new(&self.id, &self.exec_id)
            }
        })*
    };
}

named! {
    containers:
        CheckpointTaskRequest ConnectRequest CreateTaskRequest PauseRequest PidsRequest ResumeRequest ShutdownRequest
        StatsRequest UpdateTaskRequest;
    processes:
        CloseIORequest DeleteRequest ExecProcessRequest KillRequest ResizePtyRequest StartRequest StateRequest
        WaitRequest;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_named_whatever_their_ids_are() {
        let named = |container, exec| Subject::new(container, exec).to_string();
        assert_eq!(named("c", ""), "container c");
        assert_eq!(named("c", "e"), "exec e of container c");
        assert_eq!(named("", ""), "container without id");
        assert_eq!(named("a\nb", "\u{0}"), "exec \\0 of container a\\nb");
        let long = named(&"é".repeat(1 << 20), "");
        assert!(long.len() < 2 * MAX_TOLD && long.ends_with("[...]"), "{long}");
    }
}
