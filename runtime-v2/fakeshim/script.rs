//! What a test wants of its shim.

use std::{collections::HashMap, fs, io::Write, path::Path};

use serde::{Deserialize, Serialize};

/// All there is to choose; what is left out is what a good shim of today does.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Script {
    /// Task API versions that are served: 2, 3 or both.
    pub(crate) serves: Vec<i32>,
    /// Whether it serves sandboxes too, and is one.
    pub(crate) sandbox: bool,
    /// How a service that is not served is refused.
    pub(crate) unknown: Unknown,
    /// Form of the answer to `start`.
    pub(crate) answer: Answer,
    /// The version announced there.
    pub(crate) version: i32,
    /// Whether it speaks gRPC.
    pub(crate) grpc: bool,
    /// Containers of one group share a process; otherwise each has its own.
    pub(crate) group: Option<String>,
    /// Whether the socket is an abstract one, as that of old shims.
    pub(crate) abstract_socket: bool,
    /// What happens at `start`.
    pub(crate) start: Start,
    /// What happens at `delete`.
    pub(crate) delete: Delete,
    /// The pid that `delete` reports.
    pub(crate) delete_pid: u32,
    /// What happens at calls, by method (`Create`) or by method and id (`Create c1`).
    pub(crate) calls: HashMap<String, Call>,
    /// Answer to `-v`.
    pub(crate) printed_version: String,
    /// JSON of the features in the answer to `-info`; none if empty.
    pub(crate) features: String,
    /// Whether Shutdown is obeyed.
    pub(crate) obeys_shutdown: bool,
    /// Bytes written to the log at the beginning.
    pub(crate) log_bytes: usize,
    /// How it tells the end of a task.
    pub(crate) tells: Tells,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            serves: vec![2, 3],
            sandbox: false,
            unknown: Unknown::default(),
            answer: Answer::default(),
            version: 3,
            grpc: false,
            group: None,
            abstract_socket: false,
            start: Start::default(),
            delete: Delete::default(),
            delete_pid: 0,
            calls: HashMap::new(),
            printed_version: "fakeshim".into(),
            features: String::new(),
            obeys_shutdown: true,
            log_bytes: 0,
            tells: Tells::default(),
        }
    }
}

/// How the end of a task is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tells {
    /// Before the call that brings it about is answered.
    #[default]
    AtOnce,
    /// The exit only this many milliseconds behind the deletion, as containerd's shim of 2.4 may; not
    /// at all if it ends before.
    ExitLast(u64),
    /// The same, with both.
    BothLate(u64),
    /// Not at all.
    Never,
}

/// How a shim refuses a service it does not serve.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unknown {
    /// As Go's server.
    #[default]
    Unimplemented,
    /// As the published Rust server.
    InvalidArgument,
}

/// Form of the answer to `start`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    #[default]
    Protobuf,
    Json,
    Plain,
    Nothing,
    Garbage,
    /// JSON of an address nobody listens at.
    DeadAddress,
}

/// What happens at `start`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Start {
    #[default]
    Works,
    /// Fails before anything is launched.
    FailsEarly,
    /// Hangs before anything is launched.
    HangsEarly,
    /// Fails with the process launched and left behind.
    FailsLate,
    /// Hangs with the process launched.
    Hangs,
    /// Works, with a warning on stderr.
    Warns,
}

/// What happens at `delete`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Delete {
    #[default]
    Works,
    Fails,
    /// Hangs before anything is done.
    Hangs,
}

/// What happens at a call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Call {
    /// Waits first.
    pub(crate) delay_ms: u64,
    /// Waits first until a file of this name is beside the script.
    pub(crate) until: Option<String>,
    /// Never answers.
    pub(crate) hangs: bool,
    /// Does it, says so in the log of calls, and never answers.
    pub(crate) hangs_after: bool,
    /// Refuses with this code.
    pub(crate) refuses: Option<i32>,
    /// Does it, then refuses.
    pub(crate) refuses_after: Option<i32>,
    /// Ends instead of doing it.
    pub(crate) dies: bool,
    /// Does it, then ends without an answer.
    pub(crate) dies_after: bool,
}

impl Script {
    /// The script in this directory; a missing one is the default.
    pub(crate) fn read(home: &Path) -> Self {
        let Ok(text) = fs::read(home.join("fakeshim.json")) else { return Self::default() };
        // A script that cannot be read must fail the test that wrote it.
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("fakeshim.json: {error}"))
    }

    /// What happens at this call.
    pub(crate) fn call(&self, method: &str, id: &str) -> Call {
        let exact = self.calls.get(&format!("{method} {id}"));
        exact.or_else(|| self.calls.get(method)).cloned().unwrap_or_default()
    }
}

/// Appends to the log of calls.
pub(crate) fn note(home: &Path, line: &str) {
    let file = fs::OpenOptions::new().append(true).create(true).open(home.join("calls.log"));
    if let Ok(mut file) = file {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
