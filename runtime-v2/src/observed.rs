//! What the manager learns from the events that pass through it.

use runtime_proto::{
    any,
    events::{Envelope, TaskDelete, TaskExit},
    topics::Event,
};

use crate::{hearing::Told, id::Key, task::Exit};

/// What one event says of the end of a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct End {
    /// Init's exit; of that, a deletion says less than the exit itself.
    pub(crate) exit: Exit,
    /// What it is that is told.
    pub(crate) told: Told,
}

/// Reads an event, if it is one about the end of a task as a whole.
pub(crate) fn read(event: &Envelope) -> Option<(Key, End)> {
    let packed = event.event.as_ref()?;
    let (id, pid, status, at, told) = match event.topic.as_str() {
        TaskDelete::TOPIC => {
            let TaskDelete { container_id, id, pid, exit_status, exited_at, .. } =
                any::unpack(packed).ok()??;
            if is_exec(&id, &container_id) {
                return None;
            }
            let told = Told { deletion: true, ..Told::NONE };
            (container_id, pid, exit_status, exited_at, told)
        }
        TaskExit::TOPIC => {
            let TaskExit { container_id, id, pid, exit_status, exited_at, .. } =
                any::unpack(packed).ok()??;
            if is_exec(&id, &container_id) {
                return None;
            }
            (container_id, pid, exit_status, exited_at, Told { exit: true, ..Told::NONE })
        }
        _ => return None,
    };
    let key = Key::new(event.namespace.as_str(), id).ok()?;
    Some((key, End { exit: Exit { pid, status, at: at.into_option() }, told }))
}

/// Whether a process is an exec, whose end is not that of the task.
fn is_exec(process: &str, container: &str) -> bool {
    !process.is_empty() && process != container
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::envelope, id::Namespace};

    fn exit_of(process: &str) -> Option<(Key, End)> {
        let mut event = TaskExit::new();
        (event.container_id, event.id) = ("c1".into(), process.into());
        event.exit_status = 7;
        read(&envelope(&Namespace::new("ns").unwrap(), &event).unwrap())
    }

    #[test]
    fn the_end_of_init_is_the_end_of_the_task_and_that_of_an_exec_is_not() {
        for init in ["c1", ""] {
            let (key, end) = exit_of(init).unwrap();
            assert_eq!(key, Key::new("ns", "c1").unwrap());
            assert_eq!(end.exit, Exit { pid: 0, status: 7, at: None });
            assert_eq!(end.told, Told { exit: true, deletion: false });
        }
        assert_eq!(exit_of("e1"), None);
        let mut deletion = TaskDelete::new();
        (deletion.container_id, deletion.id) = ("c1".into(), "e1".into());
        assert_eq!(read(&envelope(&Namespace::new("ns").unwrap(), &deletion).unwrap()), None);
    }

    #[test]
    fn what_is_no_event_of_a_task_says_nothing() {
        let mut event = envelope(&Namespace::new("ns").unwrap(), &TaskDelete::new()).unwrap();
        assert_eq!(read(&event), None, "no id");
        event.event = None.into();
        assert_eq!(read(&event), None);
        assert_eq!(read(&Envelope::new()), None);
    }
}
