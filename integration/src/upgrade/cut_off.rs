//! Creations and deletions in whose middle the manager is killed, or the shim.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use super::mishap::Mishap;
use super::node::{Container, Node};
use super::verbs::words;
use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fakerunc::{Gate, Rule};

/// A call that stands at a gate: containerd's client that made it, if one did.
type Standing = Option<Child>;

impl Node<'_> {
    /// The manager is killed while the OCI runtime creates the container; what the next one makes of it is undone or
    /// whole.
    pub(super) async fn create_cut_off(&mut self, container: &Container) -> Result {
        let id = &container.id;
        let gate = Gate::new(self.fixture, &format!("create-{id}"));
        let client = self.create_up_to(container, &gate).await?;
        self.story.aside(format!("kill -9 of the manager while it creates {id}"));
        self.kill_manager_at(&gate, client).await?;
        self.check().await?;
        if let Some((_, status)) = self.status(id).await? {
            self.keep(container, status).await?;
            self.disk_is_true(id).await?;
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
        let client = self.delete_up_to(id, &gate).await?;
        self.story.aside(format!("kill -9 of the manager while it deletes {id}"));
        let kept = self.kept.remove(id);
        self.kill_manager_at(&gate, client).await?;
        self.check().await?;
        if let (Some(kept), Some(_)) = (kept, self.status(id).await?) {
            self.kept.insert(id.to_owned(), kept);
            self.delete_once(id).await?;
        }
        Ok(())
    }

    /// The shim is killed while the OCI runtime creates one more container in it: the creation fails, and all end that
    /// were in that shim.
    ///
    /// # Errors
    /// When the creation does not fail, or anything stays.
    pub async fn lose_shim_at_creation(&mut self, shim: u32, container: &Container) -> Result {
        let gate = Gate::new(self.fixture, &format!("lost-{}", container.id));
        let client = self.create_up_to(container, &gate).await?;
        kill(Pid::from_raw(shim.try_into()?), Signal::SIGKILL)?;
        self.open(&gate, client).await?;
        let lost = self.kept_by(shim);
        self.are_lost(&lost).await?;
        self.nothing_of(container).await
    }

    /// The shim is killed while the OCI runtime deletes one of its containers: all end.
    ///
    /// # Errors
    /// When anything stays.
    pub async fn lose_shim_at_deletion(&mut self, id: &str) -> Result {
        let gate = Gate::new(self.fixture, &format!("lost-{id}"));
        let shim = self.shim(id)?;
        if let Some(glue) = self.glue() {
            glue.tasks().kill_with(id, "", 9, true).await?;
            glue.tasks().wait(id, "").await?;
        }
        let client = self.delete_up_to(id, &gate).await?;
        kill(Pid::from_raw(shim.try_into()?), Signal::SIGKILL)?;
        self.open(&gate, client).await?;
        let lost = self.kept_by(shim);
        self.are_lost(&lost).await
    }

    /// Has a container created until the OCI runtime stands at the gate.
    async fn create_up_to(&mut self, container: &Container, gate: &Gate) -> Result<Standing> {
        let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on("create").of(&container.id) };
        self.runc.obey(&[rule])?;
        if self.glue().is_none() {
            return self.client_up_to(gate, &words(&self.run_line(container))).await.map(Some);
        }
        self.record(container).await?;
        let stands = tokio::select! {
            reached = gate.reached() => reached,
            created = self.order(container) =>
                created.and(Err(Failure::new("the creation ends in spite of all"))),
        };
        stands.context("a creation to be cut off").map(|()| None)
    }

    /// Has a container deleted until the OCI runtime stands at the gate.
    async fn delete_up_to(&mut self, id: &str, gate: &Gate) -> Result<Standing> {
        let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on("delete").of(id) };
        self.runc.obey(&[rule])?;
        if self.glue().is_none() {
            return self.client_up_to(gate, &["tasks", "rm", "--force", id]).await.map(Some);
        }
        let stands = tokio::select! {
            reached = gate.reached() => reached,
            deleted = self.delete_once(id) =>
                deleted.and(Err(Failure::new("the deletion ends in spite of all"))),
        };
        stands.context("a deletion to be cut off").map(|()| None)
    }

    async fn client_up_to(&self, gate: &Gate, line: &[&str]) -> Result<Child> {
        let mut command = self.containerd()?.ctr(line);
        let mut client = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let stands = tokio::select! {
            reached = gate.reached() => reached,
            ended = client.wait() => ended.map_err(Failure::from)
                .and(Err(Failure::new("ctr ends in spite of all"))),
        };
        stands.context(line.join(" ")).map(|()| client)
    }

    /// The runtime's call goes on while nobody manages.
    async fn kill_manager_at(&mut self, gate: &Gate, client: Standing) -> Result {
        self.kill_manager().await?;
        self.open(gate, client).await?;
        self.start_manager().await
    }

    /// Lets the call go on, and waits for the client that made it, which is told of a failure or of none.
    async fn open(&mut self, gate: &Gate, client: Standing) -> Result {
        gate.open()?;
        if let Some(mut client) = client {
            let ended = tokio::time::timeout(HANG, client.wait()).await;
            ended.map_err(|_| Failure::new("ctr does not end when its call is cut off"))??;
        }
        self.runc.obey(&[])
    }

    fn kept_by(&self, shim: u32) -> Vec<String> {
        let ids = self.kept.values().filter(|kept| kept.shim == shim);
        ids.map(|kept| kept.container.id.clone()).collect()
    }
}
