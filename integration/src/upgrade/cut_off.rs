//! Creations and deletions whose manager is killed at work.

use super::mishap::Mishap;
use super::node::{Container, Node};
use crate::failure::{Context, Failure, Result};
use crate::fakerunc::{Gate, Rule};

impl Node<'_> {
    /// The manager is killed while the OCI runtime creates the container; what the next one makes of it is undone or
    /// whole.
    pub(super) async fn create_cut_off(&mut self, container: &Container) -> Result {
        let id = &container.id;
        let gate = Gate::new(self.fixture, &format!("create-{id}"));
        let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on("create").of(id) };
        self.runc.obey(&[rule])?;
        self.record(container).await?;
        let cut = async {
            let created = async {
                self.order(container).await?;
                Err(Failure::new("the creation ends in spite of all"))
            };
            tokio::select! { reached = gate.reached() => reached, created = created => created }
        };
        cut.await.context("a creation to be cut off")?;
        self.story.aside(format!("kill -9 of the manager while it creates {id}"));
        let reopened = self.kill_manager_with(|| gate.open()).await;
        self.runc.obey(&[])?;
        reopened?;
        self.check().await?;
        if let Some((_, status)) = self.status(id).await? {
            self.keep(container, status).await?;
            let kept = self.kept(id)?.clone();
            let was = std::mem::replace(&mut self.mishap, Mishap::None);
            let removed = self.remove_task(id, &kept).await;
            self.mishap = was;
            self.kept.remove(id);
            removed?;
        }
        self.nothing_of(container).await
    }

    /// The manager is killed while the OCI runtime deletes the container; the next one ends the deletion.
    pub(super) async fn delete_cut_off(&mut self, id: &str) -> Result {
        let gate = Gate::new(self.fixture, &format!("delete-{id}"));
        let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on("delete").of(id) };
        self.runc.obey(&[rule])?;
        let cut = async {
            tokio::select! {
                reached = gate.reached() => reached,
                deleted = self.delete_once(id) =>
                    deleted.and(Err(Failure::new("the deletion ends in spite of all"))),
            }
        };
        cut.await.context("a deletion to be cut off")?;
        self.story.aside(format!("kill -9 of the manager while it deletes {id}"));
        let kept = self.kept.remove(id);
        let reopened = self.kill_manager_with(|| gate.open()).await;
        self.runc.obey(&[])?;
        reopened?;
        self.check().await?;
        if let (Some(kept), Some(_)) = (kept, self.status(id).await?) {
            self.kept.insert(id.to_owned(), kept);
            self.delete_once(id).await?;
        }
        Ok(())
    }

    async fn kill_manager_with(&mut self, then: impl FnOnce() -> Result) -> Result {
        // The runtime's call goes on while nobody manages.
        self.kill_manager().await?;
        then()?;
        self.start_manager().await
    }
}
