//! The task manager in containerd's place: the harness does what containerd's plugin does, over the same socket.

use nix::sys::signal::Signal;
use runtime_proto::manager::{self, CreateRequest, Mount};
use runtime_proto::{any, protobuf::MessageField};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::attach::{self, Attach, Surroundings};
use crate::containerd::Containerd;
use crate::failure::{Context, Result};
use crate::fixture::Fixture;
use crate::task::{Answer, TaskClient};

/// The manager's process, and the connection of a plugin to it.
#[derive(Debug)]
pub struct Glue<'a> {
    attach: Attach<'a>,
    calls: attach::Glue,
}

/// What a container is created from.
#[derive(Debug)]
pub struct Order<'a> {
    /// Its id.
    pub id: &'a str,
    /// Name or path of its runtime.
    pub runtime: &'a str,
    /// The OCI spec on record.
    pub spec: Value,
    /// Mounts of its snapshot.
    pub rootfs: Vec<Mount>,
    /// The sandbox on record that it belongs to.
    pub sandbox: Option<&'a str>,
}

impl<'a> Glue<'a> {
    /// Starts the manager, and has it take over the directories of a containerd that runs without a task plugin of its own.
    ///
    /// # Errors
    /// When it does not come up or cannot load.
    pub async fn attach(
        fixture: &'a Fixture,
        behind: &Containerd<'_>,
        sandboxes: &[String],
    ) -> Result<Self> {
        let surroundings = surroundings(fixture, behind, sandboxes).await?;
        let attach = Attach::start(fixture).await?;
        let calls = attach.glue().await?;
        let loaded = calls.load(&surroundings).await;
        loaded.context(format!("Load\n{}", attach.log_tail()))?;
        Ok(Self { attach, calls })
    }

    /// The manager's process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.attach.pid()
    }

    /// The tasks, called as a shim's are.
    #[must_use]
    pub fn tasks(&self) -> &TaskClient {
        &self.calls.tasks
    }

    /// Creates a task; gives its pid.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn create(&self, order: Order<'_>) -> Answer<u32> {
        let mut request = CreateRequest::new();
        order.id.clone_into(&mut request.id);
        order.runtime.clone_into(&mut request.runtime);
        request.spec =
            MessageField::some(any::raw(any::OCI_SPEC, order.spec.to_string().into_bytes()));
        request.rootfs = order.rootfs;
        if let Some(sandbox) = order.sandbox {
            sandbox.clone_into(&mut request.sandbox_id);
            request.sandbox_known = true;
        }
        Ok(self.calls.create(&request).await?.pid)
    }

    /// Deletes a task that has ended; gives its exit status.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn delete(&self, id: &str) -> Answer<u32> {
        Ok(self.calls.delete(id).await?.exit_status)
    }

    /// Deletes tasks that have ended, all at once.
    ///
    /// # Errors
    /// When one of them cannot be deleted.
    pub async fn delete_at_once(&self, ids: &[String]) -> Result {
        let mut deletions = JoinSet::new();
        for id in ids {
            let (calls, id) = (self.calls.clone(), id.clone());
            deletions.spawn(async move { calls.delete(&id).await });
        }
        while let Some(deletion) = deletions.join_next().await {
            deletion??;
        }
        Ok(())
    }

    /// Ends the manager as the end of containerd does.
    ///
    /// # Errors
    /// When it does not end well.
    pub async fn stop(self) -> Result {
        self.attach.stop().await
    }

    /// Kills the manager.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn kill(self) -> Result {
        self.attach.signal(Signal::SIGKILL).await.map(drop)
    }

    /// The end of the manager's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.attach.log_tail()
    }
}

/// What the plugin tells of containerd: every container by the runtime on its record, and the sandboxes.
async fn surroundings(
    fixture: &Fixture,
    behind: &Containerd<'_>,
    sandboxes: &[String],
) -> Result<Surroundings> {
    let mut surroundings = Surroundings::of(fixture, behind).await?;
    let list = behind.must(&["containers", "ls"]).await?;
    let runtime_of = |id: &str| {
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
        line.and_then(|line| line.split_whitespace().last())
    };
    for container in &mut surroundings.request.containers {
        if let Some(runtime) = runtime_of(&container.id) {
            runtime.clone_into(&mut container.runtime);
        }
    }
    let sandbox = |id: &String| {
        let mut sandbox = manager::Sandbox::new();
        fixture.namespace().clone_into(&mut sandbox.namespace);
        sandbox.id.clone_from(id);
        sandbox
    };
    surroundings.request.sandboxes = sandboxes.iter().map(sandbox).collect();
    Ok(surroundings)
}
