//! Events as a shim publishes them, taken out of their envelopes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_shim_protos::events::task as events;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;

/// What happened, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A container was created.
    Create {
        /// Container.
        id: String,
        /// Init.
        pid: u32,
        /// Its bundle.
        bundle: String,
    },
    /// Init was started.
    Start {
        /// Container.
        id: String,
        /// Init.
        pid: u32,
    },
    /// An exec was added.
    ExecAdded {
        /// Container.
        id: String,
        /// Exec.
        exec: String,
    },
    /// An exec was started.
    ExecStarted {
        /// Container.
        id: String,
        /// Exec.
        exec: String,
        /// Its process.
        pid: u32,
    },
    /// Init or an exec ended.
    Exit(Exit),
    /// A container was deleted.
    Delete {
        /// Container.
        id: String,
        /// Init.
        pid: u32,
        /// How it had ended.
        status: u32,
    },
    /// The kernel killed for lack of memory.
    Oom(String),
    /// A container was frozen.
    Paused(String),
    /// A container was thawed.
    Resumed(String),
    /// Anything else, by topic.
    Other(String),
}

/// The end of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Container.
    pub id: String,
    /// The container's id again for init, the exec's for an exec.
    pub process: String,
    /// The process.
    pub pid: u32,
    /// Its status, 128 and the signal when killed.
    pub status: u32,
    /// When, in whole nanoseconds.
    pub at: Option<SystemTime>,
}

impl Event {
    /// Reads an event by its topic.
    ///
    /// # Errors
    /// When the type does not fit the topic, or the bytes do not fit the type.
    pub fn decode(topic: &str, any: &Any) -> Result<Self, String> {
        let name = any.type_url.as_str();
        let expected = |message: &str| {
            let full = format!("containerd.events.{message}");
            if name == full { Ok(()) } else { Err(format!("{topic} carries {name}, not {full}")) }
        };
        let bytes = &any.value;
        Ok(match topic {
            "/tasks/create" => {
                expected("TaskCreate")?;
                let event: events::TaskCreate = parse(bytes)?;
                Self::Create { id: event.container_id, pid: event.pid, bundle: event.bundle }
            }
            "/tasks/start" => {
                expected("TaskStart")?;
                let event: events::TaskStart = parse(bytes)?;
                Self::Start { id: event.container_id, pid: event.pid }
            }
            "/tasks/exec-added" => {
                expected("TaskExecAdded")?;
                let event: events::TaskExecAdded = parse(bytes)?;
                Self::ExecAdded { id: event.container_id, exec: event.exec_id }
            }
            "/tasks/exec-started" => {
                expected("TaskExecStarted")?;
                let event: events::TaskExecStarted = parse(bytes)?;
                Self::ExecStarted { id: event.container_id, exec: event.exec_id, pid: event.pid }
            }
            "/tasks/exit" => {
                expected("TaskExit")?;
                let event: events::TaskExit = parse(bytes)?;
                Self::Exit(Exit {
                    id: event.container_id,
                    process: event.id,
                    pid: event.pid,
                    status: event.exit_status,
                    at: event.exited_at.as_ref().and_then(time),
                })
            }
            "/tasks/delete" => {
                expected("TaskDelete")?;
                let event: events::TaskDelete = parse(bytes)?;
                Self::Delete { id: event.container_id, pid: event.pid, status: event.exit_status }
            }
            "/tasks/oom" => {
                expected("TaskOOM")?;
                Self::Oom(parse::<events::TaskOOM>(bytes)?.container_id)
            }
            "/tasks/paused" => {
                expected("TaskPaused")?;
                Self::Paused(parse::<events::TaskPaused>(bytes)?.container_id)
            }
            "/tasks/resumed" => {
                expected("TaskResumed")?;
                Self::Resumed(parse::<events::TaskResumed>(bytes)?.container_id)
            }
            other => Self::Other(other.to_owned()),
        })
    }

    /// The container it concerns.
    #[must_use]
    pub fn container(&self) -> &str {
        match self {
            Self::Create { id, .. }
            | Self::Start { id, .. }
            | Self::ExecAdded { id, .. }
            | Self::ExecStarted { id, .. }
            | Self::Exit(Exit { id, .. })
            | Self::Delete { id, .. }
            | Self::Oom(id)
            | Self::Paused(id)
            | Self::Resumed(id) => id,
            Self::Other(_) => "",
        }
    }

    /// A word for it, with the exec it concerns: what order tests compare.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Create { .. } => "create".to_owned(),
            Self::Start { .. } => "start".to_owned(),
            Self::ExecAdded { exec, .. } => format!("exec-added {exec}"),
            Self::ExecStarted { exec, .. } => format!("exec-started {exec}"),
            Self::Exit(exit) if exit.process == exit.id => "exit".to_owned(),
            Self::Exit(exit) => format!("exit {}", exit.process),
            Self::Delete { .. } => "delete".to_owned(),
            Self::Oom(_) => "oom".to_owned(),
            Self::Paused(_) => "paused".to_owned(),
            Self::Resumed(_) => "resumed".to_owned(),
            Self::Other(topic) => topic.clone(),
        }
    }
}

/// A protobuf time as the system's; none for the zero time of Go and for nonsense.
#[must_use]
pub fn time(stamp: &Timestamp) -> Option<SystemTime> {
    let seconds = u64::try_from(stamp.seconds).ok()?;
    let nanos = u32::try_from(stamp.nanos).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

fn parse<M: Message>(bytes: &[u8]) -> Result<M, String> {
    M::parse_from_bytes(bytes).map_err(|error| error.to_string())
}
