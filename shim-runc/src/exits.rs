//! The ledger of a container's exits: which may be told now, and which must wait. Pure.
//!
//! Clients delete a container when they see the exit of its init. So that exit is told last:
//! after the exits of all execs, those included whose start is still under way. And since execs
//! could keep coming for ever, none is started any more once init's exit has been seen.

use crate::error::Error;
use runtime_proto::errdefs::Code;

/// Counts the execs of one container between accepted start and exit.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Execs whose start was accepted and whose exit was not told.
    open: usize,
    /// Init's exit was seen.
    init_exited: bool,
}

impl Ledger {
    /// Accepts the start of an exec.
    ///
    /// # Errors
    /// FailedPrecondition once init's exit was seen.
    pub fn begin_exec(&mut self, container: &str) -> Result<(), Error> {
        if self.init_exited {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!("container {container} init process is not running"),
            ));
        }
        self.open += 1;
        Ok(())
    }

    /// An accepted exec has failed to start, or its exit was told.
    pub fn end_exec(&mut self) {
        debug_assert!(self.open > 0, "an exec ends once");
        self.open = self.open.saturating_sub(1);
    }

    /// Init's exit was seen.
    pub fn init_exited(&mut self) {
        self.init_exited = true;
    }

    /// Whether init's exit was seen.
    pub fn has_init_exited(&self) -> bool {
        self.init_exited
    }

    /// Whether init's exit was seen and may be told.
    pub fn init_may_be_told(&self) -> bool {
        self.init_exited && self.open == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Begin,
        End,
        InitExits,
    }

    proptest! {
        /// In every order of starts, ends and init's exit: init is told only when no exec is
        /// open, no exec begins after its exit, and it can be told in the end.
        #[test]
        fn init_is_told_last(steps in proptest::collection::vec(
            proptest::sample::select(&[Step::Begin, Step::End, Step::InitExits][..]), 0..40))
        {
            let mut ledger = Ledger::default();
            let mut open = 0_usize;
            let mut exited = false;
            for step in steps {
                match step {
                    Step::Begin => {
                        let begun = ledger.begin_exec("c").is_ok();
                        prop_assert_eq!(begun, !exited);
                        open += usize::from(begun);
                    }
                    Step::End if open > 0 => {
                        ledger.end_exec();
                        open -= 1;
                    }
                    Step::End => {}
                    Step::InitExits => {
                        ledger.init_exited();
                        exited = true;
                    }
                }
                prop_assert_eq!(ledger.init_may_be_told(), exited && open == 0);
            }
            ledger.init_exited();
            for _ in 0..open {
                ledger.end_exec();
            }
            prop_assert!(ledger.init_may_be_told());
        }
    }
}
