//! What the manager learns from the events that pass through it.

use runtime_proto::{
    any,
    events::{Envelope, TaskDelete, TaskExit, TaskStart},
    topics::Event,
};

use crate::{id::Key, task::Exit};

/// What an event says about a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Observed {
    /// It goes on.
    Life,
    /// Its init has ended.
    Exit(Exit),
    /// It is deleted, and this was its exit.
    Deletion(Exit),
}

/// Reads an event, if it is one about a task as a whole.
pub(crate) fn read(event: &Envelope) -> Option<(Key, Observed)> {
    let packed = event.event.as_ref()?;
    let (id, observed) = match event.topic.as_str() {
        TaskStart::TOPIC => (any::unpack::<TaskStart>(packed).ok()??.container_id, Observed::Life),
        TaskDelete::TOPIC => {
            let event = any::unpack::<TaskDelete>(packed).ok()??;
            let at = event.exited_at.into_option();
            let exit = Exit { pid: event.pid, status: event.exit_status, at };
            (event.container_id, Observed::Deletion(exit))
        }
        TaskExit::TOPIC => {
            let event = any::unpack::<TaskExit>(packed).ok()??;
            // The end of an exec is not the end of the task.
            if !event.id.is_empty() && event.id != event.container_id {
                return None;
            }
            let at = event.exited_at.into_option();
            let exit = Exit { pid: event.pid, status: event.exit_status, at };
            (event.container_id, Observed::Exit(exit))
        }
        _ => return None,
    };
    Some((Key::new(event.namespace.as_str(), id).ok()?, observed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::envelope, id::Namespace};

    fn exit_of(process: &str) -> Option<(Key, Observed)> {
        let mut event = TaskExit::new();
        (event.container_id, event.id) = ("c1".into(), process.into());
        event.exit_status = 7;
        read(&envelope(&Namespace::new("ns").unwrap(), &event).unwrap())
    }

    #[test]
    fn the_end_of_init_is_the_end_of_the_task_and_that_of_an_exec_is_not() {
        for init in ["c1", ""] {
            let (key, observed) = exit_of(init).unwrap();
            assert_eq!(key, Key::new("ns", "c1").unwrap());
            assert_eq!(observed, Observed::Exit(Exit { pid: 0, status: 7, at: None }));
        }
        assert_eq!(exit_of("e1"), None);
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
