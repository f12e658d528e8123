//! Which events of shims the manager is shown, and what their silence says.
//!
//! Shims can lose events when they end: containerd's send one that failed again after seconds, and
//! since 2.4 the exit of a container can follow its deletion. So the manager listens for both before
//! it ends a shim, and what a shim can have no other listener for is told in its place.

use std::time::{Duration, SystemTime};

use runtime_proto::types::Timestamp;

/// For both ends of a task to be heard before its shim is shut down. They are sent at once, over a
/// local socket; an event that failed once is sent again by containerd's shims up to five seconds
/// later (containerd pkg/shim/publisher.go).
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);

/// For what was still under way when a shim ended.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

/// Which events of shims are shown to a manager, by
/// [`observe`](crate::TaskManager::observe).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hearing {
    /// None, or nobody knows which. No event is waited for.
    Nothing,
    /// All from this time on. Earlier ones have been told to others.
    Since(SystemTime),
    /// All that were ever told: they had no other way than through the managers of this state
    /// directory.
    Everything,
}

/// Which of the two events of its end a task has behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// That of init's exit.
    pub(crate) exit: bool,
    /// That of its deletion.
    pub(crate) deletion: bool,
}

impl Told {
    pub(crate) const BOTH: Self = Self { exit: true, deletion: true };
    pub(crate) const NONE: Self = Self { exit: false, deletion: false };

    /// What either has told.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { exit: self.exit || other.exit, deletion: self.deletion || other.deletion }
    }

    /// What is not among it.
    pub(crate) fn complement(self) -> Self {
        Self { exit: !self.exit, deletion: !self.deletion }
    }

    /// Whether it has all of these.
    pub(crate) fn has(self, wanted: Self) -> bool {
        self.and(wanted) == self
    }
}

impl Hearing {
    /// Which events of a deletion that was just answered cannot have been told without having been
    /// heard. The time is that of the exit; a process that never ran has none, and need not tell it.
    pub(crate) fn of_deletion(self, exited_at: Option<&Timestamp>) -> Told {
        let exit = match (self, exited_at.and_then(time)) {
            (Hearing::Nothing, _) => return Told::NONE,
            (_, None) => false,
            (Hearing::Since(begun), Some(at)) => at >= begun,
            (Hearing::Everything, Some(_)) => true,
        };
        Told { exit, deletion: true }
    }

    /// The same for a deletion of which nobody knows when it was.
    pub(crate) fn of_past(self) -> Told {
        if self == Hearing::Everything { Told::BOTH } else { Told::NONE }
    }
}

/// A time after 1970; none for what is no time of this world.
fn time(at: &Timestamp) -> Option<SystemTime> {
    let seconds = Duration::from_secs(u64::try_from(at.seconds).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(at.nanos).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        let mut at = Timestamp::new();
        at.seconds = seconds;
        at
    }

    #[test]
    fn an_exit_is_missed_only_by_who_listened_when_it_was_told() {
        let begun = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let deletion = Told { deletion: true, ..Told::NONE };
        for (hearing, exited, missed) in [
            (Hearing::Nothing, Some(at(200)), Told::NONE),
            (Hearing::Since(begun), Some(at(99)), deletion),
            (Hearing::Since(begun), Some(at(100)), Told::BOTH),
            (Hearing::Everything, Some(at(99)), Told::BOTH),
        ] {
            assert_eq!(hearing.of_deletion(exited.as_ref()), missed, "{hearing:?}");
        }
    }

    #[test]
    fn what_never_ran_has_no_exit_to_tell() {
        for never in [None, Some(at(-1)), Some(at(i64::MIN))] {
            let missed = Hearing::Everything.of_deletion(never.as_ref());
            assert_eq!(missed, Told { deletion: true, ..Told::NONE }, "{never:?}");
        }
    }
}
