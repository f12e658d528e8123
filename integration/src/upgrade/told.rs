//! What the player tells of a task.

use std::time::Duration;

use super::node::{Node, Status};
use crate::deadline::HANG;
use crate::failure::{Failure, Result};
use crate::task;

/// Between two looks: each starts a client where containerd plays.
const LOOK: Duration = Duration::from_millis(30);

impl Node<'_> {
    /// The status of a task and the pid of its init, as the player tells it; none if it knows of none.
    ///
    /// # Errors
    /// When the player cannot be asked.
    pub async fn status(&self, id: &str) -> Result<Option<(u32, Status)>> {
        if let Some(glue) = self.glue() {
            let state = match glue.tasks().state(id, "").await {
                Ok(state) => state,
                Err(error) if error.code() == Some(ttrpc::Code::NOT_FOUND) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            return Ok(Some((state.pid, status(state.status.enum_value_or_default()))));
        }
        let list = self.containerd()?.must(&["tasks", "ls"]).await?;
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
        let Some(line) = line else { return Ok(None) };
        let fields: Vec<&str> = line.split_whitespace().collect();
        let pid = fields.get(1).and_then(|pid| pid.parse().ok()).unwrap_or_default();
        let all = [Status::Created, Status::Running, Status::Paused, Status::Stopped];
        let word = fields.get(2).copied().unwrap_or_default();
        let status = all.into_iter().find(|status| status.to_string() == word);
        let status = status.ok_or_else(|| Failure::new(format!("{id} has status {word}")))?;
        Ok(Some((pid, status)))
    }

    /// Waits until a task has a status.
    ///
    /// # Errors
    /// When it does not come to have it.
    pub async fn until_status(&self, id: &str, status: Status) -> Result {
        let late = || Failure::new(format!("{id} does not become {status}"));
        self.until(id, |now| now == Some(status)).await.ok_or_else(late)?
    }

    /// Waits until the player knows nothing of a task.
    ///
    /// # Errors
    /// When it goes on knowing it.
    pub async fn until_lost(&self, id: &str) -> Result {
        let late = || Failure::new(format!("{id} does not go"));
        self.until(id, |now| now.is_none()).await.ok_or_else(late)?
    }

    /// Looks at a task until it is as wanted; none when that takes too long.
    async fn until(&self, id: &str, wanted: impl Fn(Option<Status>) -> bool) -> Option<Result> {
        let looks = async {
            while !wanted(self.status(id).await?.map(|task| task.1)) {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        tokio::time::timeout(HANG, looks).await.ok()
    }
}

fn status(status: task::Status) -> Status {
    match status {
        task::Status::CREATED => Status::Created,
        task::Status::PAUSED | task::Status::PAUSING => Status::Paused,
        task::Status::STOPPED => Status::Stopped,
        _ => Status::Running,
    }
}
