//! What is done to several containers at the same moment.

use super::node::{Container, Node, Status};
use super::verbs::words;
use crate::ensure;
use crate::failure::{Context, Result};

impl Node<'_> {
    /// Creates two containers at the same moment, and starts them.
    ///
    /// # Errors
    /// When one of them does not run.
    pub async fn run_at_once(&mut self, [one, other]: [&Container; 2]) -> Result {
        let manager = self.glue().is_some();
        if manager {
            for container in [one, other] {
                self.record(container).await?;
            }
            let created = tokio::try_join!(self.order(one), self.order(other));
            created.context(format!("creating two at once\n{}", self.log_tail()))?;
        } else {
            let [line, another] = [one, other].map(|container| self.run_line(container));
            let containerd = self.containerd()?;
            let (line, another) = (words(&line), words(&another));
            tokio::try_join!(containerd.must(&line), containerd.must(&another))?;
        }
        for container in [one, other] {
            let status = if manager { Status::Created } else { Status::Running };
            self.keep(container, status).await?;
            if manager {
                self.start(&container.id).await?;
            }
        }
        self.after_step().await
    }

    /// Kills containers, and deletes them all at the same time.
    ///
    /// # Errors
    /// When anything of them stays on record.
    pub async fn remove_at_once(&mut self, ids: &[String]) -> Result {
        if let Some(glue) = self.glue() {
            for id in ids {
                glue.tasks().kill_with(id, "", 9, true).await.context(format!("killing {id}"))?;
                glue.tasks().wait(id, "").await?;
            }
            glue.delete_at_once(ids).await.map_err(|failure| failure.context(self.log_tail()))?;
        } else {
            let words = |id| ["tasks", "rm", "--force", id];
            let containerd = self.containerd()?;
            let calls: Result<Vec<_>> =
                ids.iter().map(|id| Ok(containerd.ctr(&words(id)).spawn()?)).collect();
            for mut call in calls? {
                call.wait().await?;
            }
        }
        for id in ids {
            ensure!(self.status(id).await?.is_none(), "task {id} stays\n{}", self.log_tail());
            self.containerd()?.must(&["containers", "rm", id]).await?;
            ensure!(!self.bundle(id).exists(), "the bundle of {id} stays");
            self.kept.remove(id);
        }
        self.after_step().await
    }
}
