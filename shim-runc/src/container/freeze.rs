//! Pause and Resume.

use runtime_proto::events::{TaskPaused, TaskResumed};

use super::Container;
use crate::{
    error::Result,
    process::state::{InitEvent, InitState, Verb},
};

impl Container {
    /// Freezes all processes of the container, and publishes that.
    ///
    /// # Errors
    /// FailedPrecondition unless it is running; what the runtime says.
    pub async fn pause(&self) -> Result<()> {
        let _op = self.init.op.lock().await;
        self.init.snapshot().state.allows(Verb::Pause)?;
        self.happened(InitEvent::Pausing);
        if let Err(error) = self.while_alive(self.runc.pause(&self.id)).await {
            self.happened(InitEvent::PauseFailed);
            return Err(error);
        }
        if self.happened(InitEvent::Paused) != InitState::Paused {
            return Ok(());
        }
        let mut event = TaskPaused::new();
        event.container_id.clone_from(&self.id);
        self.shared.publisher.publish(&event);
        Ok(())
    }

    /// Thaws the container, and publishes that.
    ///
    /// # Errors
    /// FailedPrecondition unless it is paused; what the runtime says.
    pub async fn resume(&self) -> Result<()> {
        let _op = self.init.op.lock().await;
        self.init.snapshot().state.allows(Verb::Resume)?;
        self.while_alive(self.runc.resume(&self.id)).await?;
        if self.happened(InitEvent::Resumed) != InitState::Running {
            return Ok(());
        }
        let mut event = TaskResumed::new();
        event.container_id.clone_from(&self.id);
        self.shared.publisher.publish(&event);
        Ok(())
    }

    /// Takes note of an event, and returns the state after it. That of an init which has ended
    /// meanwhile stays, and as its end was told, nothing more is.
    fn happened(&self, event: InitEvent) -> InitState {
        self.init.update(|init| init.state = init.state.after(event));
        self.init.snapshot().state
    }
}
