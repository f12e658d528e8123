//! One shim, started as the manager of a containerd series starts it, without a manager.

mod answer;
mod launch;
mod refusal;

use std::time::Duration;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

pub use answer::{Form, Started};
pub use launch::{ERAS, Era, Launch, Ran, run};

use crate::deadline::{self, HANG};
use crate::failure::Result;
use crate::fixture::Fixture;
use crate::task::{CallError, TaskClient};

/// A shim that serves, with a connection to it.
#[derive(Debug)]
pub struct Shim {
    /// What it answered to `start`.
    pub started: Started,
    /// The connection, speaking the version that it answered.
    pub tasks: TaskClient,
    /// Its process.
    pub pid: u32,
    /// When that was started: on a busy machine its number is soon another's.
    born: Option<u64>,
}

impl Shim {
    /// Connects to a shim that has started.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn connect(fixture: &Fixture, started: Started) -> Result<Self> {
        let tasks =
            TaskClient::connect(&started.address, started.service(), fixture.namespace()).await?;
        Self::over(started, tasks).await
    }

    /// The shim at the other end of a connection.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn over(started: Started, tasks: TaskClient) -> Result<Self> {
        let pid = tasks.connect_task("none").await?.shim_pid;
        Ok(Self { started, tasks, pid, born: stat(pid).map(|(_, born)| born) })
    }

    /// Deletes what is left of a container and asks the shim to end, which it does when this was its last one.
    ///
    /// # Errors
    /// When the container cannot be deleted.
    pub async fn retire(&self, id: &str) -> Result {
        match self.tasks.kill(id, "", 9).await {
            Ok(()) => drop(self.tasks.wait(id, "").await?),
            // It ended by itself, or was deleted before.
            Err(CallError::Status { code: ttrpc::Code::NOT_FOUND, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match self.tasks.delete(id, "").await {
            Ok(_) | Err(CallError::Status { code: ttrpc::Code::NOT_FOUND, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.shutdown(id).await
    }

    /// Sends Shutdown. A connection that ends instead of answering is an answer too, as the manager sees it.
    ///
    /// # Errors
    /// When the shim refuses.
    pub async fn shutdown(&self, id: &str) -> Result {
        match self.tasks.shutdown(id).await {
            Ok(()) | Err(CallError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does the process still exist, zombies not counted?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        stat(self.pid).is_some_and(|(lives, born)| lives && Some(born) == self.born)
    }

    /// Waits until the process is gone.
    ///
    /// # Errors
    /// When it stays.
    pub async fn gone(&self) -> Result {
        let what = format!("the end of shim {}", self.pid);
        deadline::until(&what, HANG, || !self.is_alive()).await
    }

    /// Waits until the process is gone, within a limit that is part of what is promised.
    ///
    /// # Errors
    /// When it stays longer.
    pub async fn gone_within(&self, limit: Duration) -> Result {
        deadline::until("the end of the shim", limit, || !self.is_alive()).await
    }
}

/// Does a process exist, zombies not counted?
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(lives, _)| lives)
}

/// Whether a process is more than a zombie, and when it was started, in ticks since the machine was; none when there is none.
fn stat(pid: u32) -> Option<(bool, u64)> {
    /// The place of the start behind the name, of which the state is the first.
    const START: usize = 19;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, tail) = stat.rsplit_once(") ")?;
    let born = tail.split(' ').nth(START)?.parse().ok()?;
    Some((!tail.starts_with(['Z', 'X']), born))
}

/// Packs runc options as containerd's client does.
///
/// # Errors
/// Never for real: the message has no required fields.
pub fn runc_options(options: &containerd_shim_protos::shim::oci::Options) -> Result<Any> {
    let mut any = Any::new();
    any.type_url = "containerd.runc.v1.Options".to_owned();
    any.value = options.write_to_bytes()?;
    Ok(any)
}
