//! Events as a client sees them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Child;

use super::Daemon;
use crate::ctr::Ctr;
use crate::deadline::{self, HANG};
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;

/// `ctr events`, written to a file.
#[derive(Debug)]
pub struct Events {
    child: Child,
    file: PathBuf,
}

impl Events {
    /// Subscribes through a daemon, and returns when events come in.
    ///
    /// # Errors
    /// When none come in.
    pub async fn follow(daemon: &Daemon<'_>) -> Result<Self> {
        Self::of(daemon.fixture, &daemon.ctr).await
    }

    /// Subscribes by a client, and returns when events come in.
    ///
    /// # Errors
    /// When none come in.
    pub async fn of(fixture: &Fixture, ctr: &Ctr) -> Result<Self> {
        let file = fixture.file("events");
        let mut command = ctr.command(&["events"]);
        let child = command.stdout(File::create(&file)?).spawn()?;
        let events = Self { child, file };
        // Nobody says when the subscription stands; an event of our own does.
        let mark = format!("{}-mark", fixture.namespace());
        let seen = async {
            while events.lines_with(&mark).is_empty() {
                ctr.must(&["namespaces", "label", fixture.namespace(), &mark]).await.ok();
                let set = format!("x={mark}");
                ctr.must(&["namespaces", "label", fixture.namespace(), &set]).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok::<(), Failure>(())
        };
        let limited = tokio::time::timeout(HANG, seen).await;
        limited.map_err(|_| Failure::new("no events come in"))??;
        Ok(events)
    }

    /// The process that reads them.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Topics of the task events about an id, in the order they came.
    #[must_use]
    pub fn topics_of(&self, id: &str) -> Vec<String> {
        let lines = self.lines_with(&format!("\"{id}\""));
        let topic = |line: &String| {
            line.split_whitespace().find(|word| word.starts_with("/tasks/")).map(str::to_owned)
        };
        lines.iter().filter_map(topic).collect()
    }

    /// Lines that contain a text.
    #[must_use]
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        let all = fs::read_to_string(&self.file).unwrap_or_default();
        all.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// Waits until the last event of a task's life has come.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn until_deleted(&self, id: &str) -> Result {
        deadline::until("the delete event", HANG, || {
            self.topics_of(id).last().is_some_and(|topic| topic == "/tasks/delete")
        })
        .await
    }

    /// Ends the subscription.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(mut self) -> Result {
        self.child.kill().await.context("ending ctr events")
    }
}
