//! Start of init, by `start` or from a checkpoint.

use std::{path::PathBuf, sync::Arc};

use runtime_proto::events::TaskStart;

use super::Container;
use crate::{
    error::Result,
    process::state::{InitEvent, InitState, Verb},
    runc::{CreateArgs, ProcessStreams, RestoreArgs},
};

impl Container {
    /// Lets init run, publishes that, and returns its pid.
    ///
    /// # Errors
    /// FailedPrecondition unless it is waiting to be started; what the runtime says.
    pub async fn start(self: &Arc<Self>) -> Result<u32> {
        let _op = self.init.op.lock().await;
        // Init's end, however soon, is published when the gate opens: after its start.
        let _gate = self.init.start_gate.lock().await;
        let state = self.init.snapshot().state;
        state.allows(Verb::Start)?;
        let start = async {
            if state == InitState::CreatedFromCheckpoint {
                self.restore().await
            } else {
                self.runc.start(&self.id).await
            }
        };
        self.while_alive(start).await?;
        self.init.update(|init| init.state = init.state.after(InitEvent::Started));
        let mut event = TaskStart::new();
        event.container_id.clone_from(&self.id);
        event.pid = self.pid();
        self.shared.publisher.publish(&event);
        Ok(event.pid)
    }

    async fn restore(self: &Arc<Self>) -> Result<()> {
        let image = self.checkpoint.clone().unwrap_or_default();
        let work = match self.options.criu_work_path.as_str() {
            "" => self.bundle.join("work"),
            path => PathBuf::from(path),
        };
        let pid_file = self.init_pid_file();
        let args = RestoreArgs {
            create: CreateArgs {
                bundle: &self.bundle,
                pid_file: &pid_file,
                no_pivot: self.options.no_pivot_root,
                no_new_keyring: false,
            },
            image: &image,
            work: &work,
        };
        let claim = self.shared.reaper.claim();
        let restored = self
            .launch_init(&claim, async |streams: ProcessStreams<'_>| {
                self.runc.restore(&self.id, &args, streams).await
            })
            .await;
        let adopted = restored.map_err(|error| self.with_criu_log(error, &work, "restore.log"))?;
        let watched = self.adopted(adopted).await;
        self.watch(watched);
        Ok(())
    }
}
