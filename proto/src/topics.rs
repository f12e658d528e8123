//! The events a runtime publishes, and the topic of each.

use crate::{any::Named, any::named, events};

/// An event that containerd's bus knows.
pub trait Event: Named {
    /// Where subscribers find it.
    const TOPIC: &'static str;
}

macro_rules! events {
    ($($message:ident => $topic:literal, $name:literal;)*) => {
        named! { $(events::$message => $name,)* }
        $(impl Event for events::$message { const TOPIC: &'static str = $topic; })*
    };
}

events! {
    TaskCreate => "/tasks/create", "containerd.events.TaskCreate";
    TaskStart => "/tasks/start", "containerd.events.TaskStart";
    TaskDelete => "/tasks/delete", "containerd.events.TaskDelete";
    TaskExit => "/tasks/exit", "containerd.events.TaskExit";
    TaskOOM => "/tasks/oom", "containerd.events.TaskOOM";
    TaskExecAdded => "/tasks/exec-added", "containerd.events.TaskExecAdded";
    TaskExecStarted => "/tasks/exec-started", "containerd.events.TaskExecStarted";
    TaskPaused => "/tasks/paused", "containerd.events.TaskPaused";
    TaskResumed => "/tasks/resumed", "containerd.events.TaskResumed";
    TaskCheckpointed => "/tasks/checkpointed", "containerd.events.TaskCheckpointed";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are typed by hand; the descriptors of the published crate are the check.
    #[test]
    fn names_are_those_of_the_descriptors() {
        fn check<E: Event + protobuf::MessageFull>() {
            assert_eq!(E::FULL_NAME, E::descriptor().full_name());
            assert!(E::TOPIC.starts_with("/tasks/"));
        }
        check::<events::TaskCreate>();
        check::<events::TaskStart>();
        check::<events::TaskDelete>();
        check::<events::TaskExit>();
        check::<events::TaskOOM>();
        check::<events::TaskExecAdded>();
        check::<events::TaskExecStarted>();
        check::<events::TaskPaused>();
        check::<events::TaskResumed>();
        check::<events::TaskCheckpointed>();
    }
}
