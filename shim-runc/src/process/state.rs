//! The states of a process and what may be done in each. Pure: no I/O, no clock.
//!
//! ```text
//!  init                     Start           Pause            Paused
//!    Created ───────────────────▶ Running ────────▶ Pausing ────────▶ Paused
//!      │  ▲ Created(restore)        │  ▲ ◀────────────┘ PauseFailed     │
//!      │  └ has no pid until Start  │  └───────────────────────────────┘ Resume
//!      │                            │                                  │
//!      └───────── Exited ──────────▶ Stopped ◀──────── Exited ─────────┘
//!                                     │
//!      Created ─── Delete ──▶ Deleted ◀── Delete
//!
//!  exec
//!    Created ── Start ──▶ Running ── Exited ──▶ Stopped ── Delete ──▶ Deleted
//!      └─ StartFailed ──▶ Failed ───────────── Delete ───────────────────┘
//!      └───────────────────────────────────── Delete ───────────────────┘
//! ```

use std::fmt;

use runtime_proto::{errdefs::Code, task::Status};

use crate::error::Error;

/// What a client asks of a process, as far as its state decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Let a created process run.
    Start,
    /// Freeze the container.
    Pause,
    /// Thaw it.
    Resume,
    /// Send a signal.
    Kill,
    /// Put another process into the container.
    Exec,
    /// Write a checkpoint.
    Checkpoint,
    /// Change its resources.
    Update,
    /// Change the size of its terminal.
    Resize,
    /// Remove it.
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Start => "start",
            Verb::Pause => "pause",
            Verb::Resume => "resume",
            Verb::Kill => "kill",
            Verb::Exec => "exec in",
            Verb::Checkpoint => "checkpoint",
            Verb::Update => "update",
            Verb::Resize => "resize",
            Verb::Delete => "delete",
        })
    }
}

/// A verb that the state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// What was asked.
    pub verb: Verb,
    /// The state, in words.
    pub state: &'static str,
    /// Whether the process is gone for clients, rather than in a wrong state.
    pub gone: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} a {} process", self.verb, self.state)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let code = if refused.gone { Code::NotFound } else { Code::FailedPrecondition };
        Error::new(code, refused.to_string())
    }
}

/// The state of a container's init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitState {
    /// Made, and waiting to be started.
    Created,
    /// To be restored from a checkpoint; the runtime knows nothing of it yet.
    CreatedFromCheckpoint,
    /// Running.
    Running,
    /// Being frozen.
    Pausing,
    /// Frozen.
    Paused,
    /// Ended.
    Stopped,
    /// Removed.
    Deleted,
}

/// What happens to an init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitEvent {
    /// The runtime has started or restored it.
    Started,
    /// A pause begins.
    Pausing,
    /// The pause failed.
    PauseFailed,
    /// It is frozen.
    Paused,
    /// It is thawed.
    Resumed,
    /// It has ended.
    Exited,
    /// It was removed.
    Deleted,
}

impl InitState {
    /// Whether `verb` is allowed now.
    ///
    /// # Errors
    /// The refusal.
    pub fn allows(self, verb: Verb) -> Result<(), Refused> {
        use InitState as S;
        let allowed = match verb {
            Verb::Start => matches!(self, S::Created | S::CreatedFromCheckpoint),
            Verb::Pause => self == S::Running,
            Verb::Resume => self == S::Paused,
            Verb::Exec => matches!(self, S::Created | S::Running),
            Verb::Checkpoint => matches!(self, S::Running | S::Paused),
            Verb::Update => matches!(self, S::Created | S::Running | S::Pausing | S::Paused),
            Verb::Resize => !matches!(self, S::Stopped | S::Deleted),
            Verb::Kill => !matches!(self, S::Deleted | S::CreatedFromCheckpoint),
            Verb::Delete => {
                matches!(self, S::Created | S::CreatedFromCheckpoint | S::Stopped)
            }
        };
        if allowed {
            return Ok(());
        }
        let gone = match self {
            S::Deleted => matches!(verb, Verb::Kill | Verb::Delete),
            // The runtime does not know it yet.
            S::CreatedFromCheckpoint => verb == Verb::Kill,
            _ => false,
        };
        Err(Refused { verb, state: self.word(), gone })
    }

    /// The state after `event`. An event that comes too late (a pause that completes after the
    /// process has ended) changes nothing.
    #[must_use]
    pub fn after(self, event: InitEvent) -> Self {
        use InitEvent as E;
        use InitState as S;
        match (self, event) {
            (_, E::Deleted) => S::Deleted,
            (S::Deleted, _) => S::Deleted,
            (_, E::Exited) => S::Stopped,
            (S::Created | S::CreatedFromCheckpoint, E::Started) => S::Running,
            (S::Running, E::Pausing) => S::Pausing,
            (S::Pausing, E::Paused) => S::Paused,
            (S::Pausing, E::PauseFailed) | (S::Paused, E::Resumed) => S::Running,
            (state, _) => state,
        }
    }

    /// The state as clients see it.
    pub fn status(self) -> Status {
        match self {
            InitState::Created | InitState::CreatedFromCheckpoint => Status::CREATED,
            InitState::Running => Status::RUNNING,
            InitState::Pausing => Status::PAUSING,
            InitState::Paused => Status::PAUSED,
            InitState::Stopped | InitState::Deleted => Status::STOPPED,
        }
    }

    fn word(self) -> &'static str {
        match self {
            InitState::Created | InitState::CreatedFromCheckpoint => "created",
            InitState::Running => "running",
            InitState::Pausing => "pausing",
            InitState::Paused => "paused",
            InitState::Stopped => "stopped",
            InitState::Deleted => "deleted",
        }
    }
}

/// The state of an additional process of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecState {
    /// Known, and not started.
    Created,
    /// Its start has failed; it can only be deleted.
    Failed,
    /// Running.
    Running,
    /// Ended.
    Stopped,
    /// Removed.
    Deleted,
}

/// What happens to an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecEvent {
    /// The runtime has started it.
    Started,
    /// The runtime could not start it.
    StartFailed,
    /// It has ended.
    Exited,
    /// It was removed.
    Deleted,
}

impl ExecState {
    /// Whether `verb` is allowed now.
    ///
    /// # Errors
    /// The refusal.
    pub fn allows(self, verb: Verb) -> Result<(), Refused> {
        use ExecState as S;
        let allowed = match verb {
            Verb::Start => self == S::Created,
            Verb::Kill => self == S::Running,
            Verb::Resize => matches!(self, S::Created | S::Failed | S::Running),
            Verb::Delete => matches!(self, S::Created | S::Failed | S::Stopped),
            Verb::Pause | Verb::Resume | Verb::Exec | Verb::Checkpoint | Verb::Update => false,
        };
        if allowed {
            return Ok(());
        }
        // A signal for a process that has ended, and anything for one that was removed.
        let gone = match self {
            S::Deleted => matches!(verb, Verb::Kill | Verb::Delete),
            S::Stopped => verb == Verb::Kill,
            S::Created | S::Failed | S::Running => false,
        };
        Err(Refused { verb, state: self.word(), gone })
    }

    /// The state after `event`; an event that comes too late changes nothing.
    #[must_use]
    pub fn after(self, event: ExecEvent) -> Self {
        use ExecEvent as E;
        use ExecState as S;
        match (self, event) {
            (_, E::Deleted) => S::Deleted,
            (S::Created, E::Started) => S::Running,
            (S::Created, E::StartFailed) => S::Failed,
            (S::Running, E::Exited) => S::Stopped,
            (state, _) => state,
        }
    }

    /// The state as clients see it.
    pub fn status(self) -> Status {
        match self {
            ExecState::Created | ExecState::Failed => Status::CREATED,
            ExecState::Running => Status::RUNNING,
            ExecState::Stopped | ExecState::Deleted => Status::STOPPED,
        }
    }

    fn word(self) -> &'static str {
        match self {
            ExecState::Created => "created",
            ExecState::Failed => "failed",
            ExecState::Running => "running",
            ExecState::Stopped => "stopped",
            ExecState::Deleted => "deleted",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VERBS: [Verb; 9] = [
        Verb::Start,
        Verb::Pause,
        Verb::Resume,
        Verb::Kill,
        Verb::Exec,
        Verb::Checkpoint,
        Verb::Update,
        Verb::Resize,
        Verb::Delete,
    ];

    /// What a state says to each of `VERBS`: `y` allowed, `n` refused, `g` gone.
    fn row(allows: impl Fn(Verb) -> Result<(), Refused>) -> String {
        let mark = |verb| match allows(verb) {
            Ok(()) => 'y',
            Err(refused) if refused.gone => 'g',
            Err(_) => 'n',
        };
        VERBS.into_iter().map(mark).collect()
    }

    #[test]
    fn table_of_init() {
        use InitState as S;
        let table = [
            (S::Created, "ynnyynyyy"),
            (S::CreatedFromCheckpoint, "ynngnnnyy"),
            (S::Running, "nynyyyyyn"),
            (S::Pausing, "nnnynnyyn"),
            (S::Paused, "nnyynyyyn"),
            (S::Stopped, "nnnynnnny"),
            (S::Deleted, "nnngnnnng"),
        ];
        for (state, marks) in table {
            assert_eq!(row(|verb| state.allows(verb)), marks, "{state:?}");
        }
    }

    #[test]
    fn table_of_exec() {
        use ExecState as S;
        let table = [
            (S::Created, "ynnnnnnyy"),
            (S::Failed, "nnnnnnnyy"),
            (S::Running, "nnnynnnyn"),
            (S::Stopped, "nnngnnnny"),
            (S::Deleted, "nnngnnnng"),
        ];
        for (state, marks) in table {
            assert_eq!(row(|verb| state.allows(verb)), marks, "{state:?}");
        }
    }

    #[test]
    fn refusals_name_the_verb_and_the_state() {
        let refused = InitState::Running.allows(Verb::Delete).unwrap_err();
        assert_eq!(refused.to_string(), "cannot delete a running process");
        assert_eq!(Error::from(refused).kind(), Code::FailedPrecondition);
        let gone = InitState::Deleted.allows(Verb::Delete).unwrap_err();
        assert_eq!(Error::from(gone).kind(), Code::NotFound);
    }

    fn init_event() -> impl Strategy<Value = InitEvent> {
        use InitEvent as E;
        const ALL: [InitEvent; 6] =
            [E::Started, E::Pausing, E::PauseFailed, E::Paused, E::Resumed, E::Exited];
        proptest::sample::select(&ALL[..])
    }

    proptest! {
        /// Whatever comes in whatever order: an ended init never runs again, a removed one never
        /// comes back, and the frozen states are only entered from a running one.
        #[test]
        fn an_end_is_final(events in proptest::collection::vec(init_event(), 0..20)) {
            let mut state = InitState::Created;
            let mut ended = false;
            for event in events {
                let next = state.after(event);
                ended |= event == InitEvent::Exited;
                prop_assert_eq!(ended, next == InitState::Stopped);
                if next == InitState::Paused && state != InitState::Paused {
                    prop_assert_eq!(state, InitState::Pausing);
                }
                state = next;
            }
            prop_assert_eq!(state.after(InitEvent::Deleted), InitState::Deleted);
        }
    }
}
