//! What one does with containers, whoever plays.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::mishap::Mishap;
use super::node::{Container, Kept, Node, Status};
use crate::deadline::{self, HANG};
use crate::failure::{Context, Failure, Result};
use crate::fakerunc::Rule;
use crate::stdio::Stdio;
use crate::{ensure, ensure_eq};

/// What a container runs until it is killed.
const SLEEP: [&str; 2] = ["sleep", "1000"];

impl Node<'_> {
    /// A container on its own.
    #[must_use]
    pub fn container(&self, name: &str) -> Container {
        let id = self.fixture.id(name);
        self.fixture.expect_socket(&self.dir.join("c.sock"), &id);
        let command = SLEEP.map(str::to_owned).to_vec();
        let runtime = "io.containerd.runc.v2".to_owned();
        Container { id, sandbox: None, on_record: false, runtime, command }
    }

    /// A container of a pod, which is known by the id of its pause container.
    #[must_use]
    pub fn member(&self, pause: &Container, name: &str) -> Container {
        Container { sandbox: Some(pause.id.clone()), on_record: true, ..self.container(name) }
    }

    /// The pause container of a pod.
    #[must_use]
    pub fn pause_container(&self, name: &str) -> Container {
        let pause = self.container(name);
        self.member(&pause, name)
    }

    /// Creates and starts a container; the node keeps it from here on.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn run(&mut self, container: &Container) -> Result {
        self.create(container).await?;
        if self.kept(&container.id)?.status == Status::Created {
            self.start(&container.id).await?;
        }
        self.after_step().await
    }

    /// Creates a container. Containerd's own client starts it as well.
    async fn create(&mut self, container: &Container) -> Result {
        if let Some(full) = self.fill_disk()? {
            let tried = self.create_once(container).await;
            drop(full);
            let Err(said) = tried else { return Ok(()) };
            self.story.aside(format!("on a full disk {} is refused", container.id));
            self.nothing_of(container).await.context(format!("after {said}"))?;
            if self.create_while_disk_fills(container).await? {
                return Ok(());
            }
        }
        if self.mishap == Mishap::KilledAtWork && self.has_manager() {
            self.create_cut_off(container).await?;
        }
        self.create_once(container).await
    }

    async fn create_once(&mut self, container: &Container) -> Result {
        let status = self.ask_for(container).await?;
        self.keep(container, status).await
    }

    /// Has a container created, and by containerd's client started; gives the status it then has.
    pub(super) async fn ask_for(&self, container: &Container) -> Result<Status> {
        if self.glue().is_none() {
            self.containerd()?.must(&words(&self.run_line(container))).await?;
            return Ok(Status::Running);
        }
        self.record(container).await?;
        let created = self.order(container).await;
        created.context(format!("creating {}\n{}", container.id, self.log_tail()))?;
        Ok(Status::Created)
    }

    /// From here on the node answers for it.
    pub(super) async fn keep(&mut self, container: &Container, expected: Status) -> Result {
        let id = &container.id;
        let found = self.status(id).await?;
        let (pid, status) = found.ok_or_else(|| Failure::new(format!("{id} is not there")))?;
        ensure!(status == expected || status == Status::Stopped, "{id} is {status}");
        let shim = self.shim_of(id).await?;
        let container = container.clone();
        let kept = Kept { container, pid, shim, status, execs: Vec::new() };
        self.kept.insert(kept.container.id.clone(), kept);
        Ok(())
    }

    /// Has a container created, which has to fail and to leave nothing.
    ///
    /// # Errors
    /// When it does not fail, or anything stays.
    pub async fn is_refused(&mut self, container: &Container) -> Result {
        let tried = self.create_once(container).await;
        ensure!(tried.is_err(), "{} is created", container.id);
        self.nothing_of(container).await
    }

    /// Creates a container and does not start it.
    ///
    /// # Errors
    /// When it cannot be created.
    pub async fn create_only(&mut self, container: &Container) -> Result {
        if self.glue().is_none() {
            // Containerd's client always goes on to the start, so that one has to fail.
            self.runc.obey(&[Rule::on("start").of(&container.id).fails("not yet")])?;
            let output = self.containerd()?.output(&words(&self.run_line(container))).await?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(said.contains("not yet"), "{said}");
            self.runc.obey(&[])?;
            self.keep(container, Status::Created).await?;
        } else {
            self.create(container).await?;
        }
        self.after_step().await
    }

    /// Starts what has been created. Containerd's client cannot, so there the shim is told itself.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(&mut self, id: &str) -> Result {
        let started = match self.glue() {
            Some(glue) => glue.tasks().start(id, "").await,
            None => self.shim_client(id).await?.start(id, "").await,
        };
        let pid = started.context(format!("starting {id}"))?;
        let kept = self.kept_mut(id)?;
        ensure_eq!(pid, kept.pid, "pid of {id}");
        kept.status = Status::Running;
        Ok(())
    }

    /// Freezes a container.
    ///
    /// # Errors
    /// When it cannot be frozen.
    pub async fn pause(&mut self, id: &str) -> Result {
        match self.glue() {
            Some(glue) => glue.tasks().pause(id).await?,
            None => drop(self.containerd()?.must(&["tasks", "pause", id]).await?),
        }
        self.kept_mut(id)?.status = Status::Paused;
        Ok(())
    }

    /// Thaws it.
    ///
    /// # Errors
    /// When it cannot be thawed.
    pub async fn resume(&mut self, id: &str) -> Result {
        match self.glue() {
            Some(glue) => glue.tasks().resume(id).await?,
            None => drop(self.containerd()?.must(&["tasks", "resume", id]).await?),
        }
        self.kept_mut(id)?.status = Status::Running;
        Ok(())
    }

    /// Waits for a container to end by itself.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn ended(&mut self, id: &str) -> Result {
        self.until_status(id, Status::Stopped).await?;
        self.kept_mut(id)?.status = Status::Stopped;
        Ok(())
    }

    /// Runs a command in a container to its end, and looks at its exit code.
    ///
    /// # Errors
    /// When it cannot be run, or ends otherwise.
    pub async fn exec(&self, id: &str) -> Result {
        const CODE: u32 = 9;
        let script = format!("exit {CODE}");
        let mut said = String::new();
        let code = if let Some(glue) = self.glue() {
            let process = process(&["sh", "-c", &script]);
            glue.tasks().exec(id, "once", &process, &Stdio::null()).await?;
            glue.tasks().start(id, "once").await?;
            let end = glue.tasks().wait(id, "once").await?;
            glue.tasks().delete(id, "once").await?;
            Some(end.exit_status)
        } else {
            let words = ["tasks", "exec", "--exec-id", "once", id, "sh", "-c", &script];
            let output = self.containerd()?.output(&words).await?;
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.code().and_then(|code| u32::try_from(code).ok())
        };
        ensure_eq!(code, Some(CODE), "exit code of an exec in {id}, which says {said:?}");
        Ok(())
    }

    /// Starts a command in a container that runs on.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn exec_that_stays(&mut self, id: &str) -> Result {
        let name = "stays".to_owned();
        if let Some(glue) = self.glue() {
            glue.tasks().exec(id, &name, &process(&SLEEP), &Stdio::null()).await?;
            glue.tasks().start(id, &name).await?;
        } else {
            // Its output goes to a file: fifos would be left by a client that does not stay.
            let log = format!("file://{}", self.fixture.file("exec.log").display());
            let words =
                ["tasks", "exec", "--detach", "--log-uri", &log, "--exec-id", &name, id, "sleep"];
            self.containerd()?.must(&[&words[..], &["1000"]].concat()).await?;
        }
        let pid = self.shim_client(id).await?.state(id, &name).await?.pid;
        self.kept_mut(id)?.execs.push((name, pid));
        Ok(())
    }

    /// Ends the commands that stay, and has them forgotten.
    ///
    /// # Errors
    /// When they cannot be ended.
    pub async fn end_execs(&mut self, id: &str) -> Result {
        for (exec, _) in std::mem::take(&mut self.kept_mut(id)?.execs) {
            if let Some(glue) = self.glue() {
                glue.tasks().kill(id, &exec, 9).await?;
                ensure_eq!(glue.tasks().wait(id, &exec).await?.exit_status, 137, "end of {exec}");
                glue.tasks().delete(id, &exec).await?;
                continue;
            }
            let containerd = self.containerd()?;
            containerd.must(&["tasks", "kill", "--exec-id", &exec, "-s", "9", id]).await?;
            let shim = self.shim_client(id).await?;
            ensure_eq!(shim.wait(id, &exec).await?.exit_status, 137, "end of {exec}");
            // ctr tells the exit code by its own.
            containerd.output(&["tasks", "rm", "--exec-id", &exec, id]).await?;
        }
        Ok(())
    }

    /// Kills a container, and deletes task and record.
    ///
    /// # Errors
    /// When anything of it stays on record.
    pub async fn remove(&mut self, id: &str) -> Result {
        let kept = self.kept(id)?.clone();
        self.remove_task(id, &kept).await?;
        ensure!(self.status(id).await?.is_none(), "task {id} stays\n{}", self.log_tail());
        self.containerd()?.must(&["containers", "rm", id]).await?;
        self.bundle_goes(id).await?;
        self.kept.remove(id);
        self.after_step().await
    }

    /// Kills the init process of a container, which stays until it is deleted.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn dies(&mut self, id: &str) -> Result {
        kill(Pid::from_raw(self.kept(id)?.pid.try_into()?), Signal::SIGKILL)?;
        self.ended(id).await
    }

    /// Kills the shim of some containers, which all have to be told of as lost, and to leave nothing.
    ///
    /// # Errors
    /// When anything of them stays.
    pub async fn lose_shim(&mut self, shim: u32) -> Result {
        let lost: Vec<String> = self
            .kept
            .values()
            .filter(|kept| kept.shim == shim)
            .map(|kept| kept.container.id.clone())
            .collect();
        kill(Pid::from_raw(shim.try_into()?), Signal::SIGKILL)?;
        if self.playing.is_some() {
            self.are_lost(&lost).await?;
        }
        Ok(())
    }

    /// Containers whose shim is dead: they end, nobody knows of them any more, and nothing is left of them.
    ///
    /// # Errors
    /// When anything of them stays.
    pub async fn are_lost(&mut self, ids: &[String]) -> Result {
        for id in ids {
            self.until_lost(id).await?;
            let ended = || self.has_ended(id).unwrap_or(true);
            deadline::until(&format!("the end of {id}"), HANG, ended).await?;
            self.bundle_goes(id).await?;
            self.containerd()?.must(&["containers", "rm", id]).await?;
        }
        self.give_up(ids);
        Ok(())
    }

    pub(super) async fn remove_task(&mut self, id: &str, kept: &Kept) -> Result {
        // Containerd's client kills what it deletes.
        if kept.status != Status::Stopped && self.glue().is_some() {
            let tasks = self.tasks()?;
            tasks.kill_with(id, "", 9, true).await.context(format!("killing {id}"))?;
            if kept.status == Status::Paused {
                // It dies when it is thawed; 1.7's shim and later thaw it themselves.
                let _ = tasks.resume(id).await;
            }
            tasks.wait(id, "").await?;
        }
        if let Some(full) = self.fill_disk()? {
            let tried = self.delete_once(id).await;
            drop(full);
            let Err(said) = tried else { return Ok(()) };
            self.story.aside(format!("on a full disk the deletion fails: {said}"));
        }
        if self.mishap == Mishap::KilledAtWork && self.has_manager() {
            return self.delete_cut_off(id).await;
        }
        self.delete_once(id).await
    }

    pub(super) async fn delete_once(&self, id: &str) -> Result {
        if self.glue().is_none() {
            // ctr tells the status of the killed task by failing.
            let output = self.containerd()?.output(&["tasks", "rm", "--force", id]).await?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(self.status(id).await?.is_none(), "deleting {id}: {said}\n{}", self.log_tail());
            return Ok(());
        }
        let deleted = self.manager()?.delete(id).await.context(format!("deleting {id}"));
        deleted.map(drop).map_err(|failure| failure.context(self.log_tail()))
    }

    /// Nothing may be left of a container that could not be created.
    pub(super) async fn nothing_of(&self, container: &Container) -> Result {
        let id = &container.id;
        self.until_lost(id).await?;
        self.bundle_goes(id).await?;
        let containerd = self.containerd()?;
        containerd.must(&["containers", "rm", id]).await.map(drop)
    }

    /// A manager that has just come up may still be at the removal of what another has left.
    async fn bundle_goes(&self, id: &str) -> Result {
        let bundle = self.bundle(id);
        deadline::until(&format!("the end of {id}'s bundle"), HANG, || !bundle.exists()).await
    }

    fn tasks(&self) -> Result<crate::task::TaskClient> {
        Ok(self.manager()?.tasks().clone())
    }
}

/// A command line as ctr is given it.
pub(super) fn words(line: &[String]) -> Vec<&str> {
    line.iter().map(String::as_str).collect()
}

fn process(argv: &[&str]) -> Value {
    json!({ "args": argv, "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 } })
}
