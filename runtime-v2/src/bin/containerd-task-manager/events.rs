//! Events: what the manager itself must say goes to containerd's subscribers, and what shims say
//! there, the manager learns.
//!
//! Shims send their events straight to containerd, so that subscribers get them in order and once
//! whether or not this daemon runs. The manager reads along for one reason: an exit that a shim
//! has told is not told again when that shim dies later.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use runtime_proto::events::Envelope;
use runtime_v2::{Code, Error, EventSink, Hearing, Result, TaskManager};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tonic::Status;

use crate::{containerd::Containerd, convert, metrics::Metrics};

/// How long an event waits for a containerd that is away: as long as shims keep theirs, and more
/// than a restart takes.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two tries to reach a containerd that is away.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Topics of tasks, in containerd's filter language.
const TASK_TOPICS: &str = r#"topic~="^/tasks/""#;

/// Publishes at the containerd behind.
#[derive(Debug)]
pub(crate) struct Publisher {
    containerd: Containerd,
    metrics: Arc<Metrics>,
    stopping: Option<watch::Receiver<bool>>,
}

impl Publisher {
    /// A publisher at that containerd.
    pub(crate) fn new(containerd: Containerd, metrics: Arc<Metrics>) -> Self {
        Self { containerd, metrics, stopping: None }
    }

    /// One whose events wait for that containerd until the manager stops: it is still starting, or
    /// takes this manager along when it ends.
    pub(crate) fn until(mut self, stopping: watch::Receiver<bool>) -> Self {
        self.stopping = Some(stopping);
        self
    }

    /// Waits before the next try; false if there is to be none.
    async fn pause(&self, deadline: Instant) -> bool {
        let Some(mut stopping) = self.stopping.clone() else {
            sleep(RETRY_PAUSE).await;
            return Instant::now() < deadline;
        };
        tokio::select! {
            () = sleep(RETRY_PAUSE) => true,
            _ = stopping.wait_for(|stopping| *stopping) => false,
        }
    }
}

#[async_trait]
impl EventSink for Publisher {
    async fn publish(&self, event: Envelope) -> Result<()> {
        let event = convert::envelope_out(event);
        let topic = event.topic.clone();
        let deadline = Instant::now() + PUBLISH_TIMEOUT;
        loop {
            let status = match self.containerd.forward(event.clone()).await {
                Ok(()) => {
                    self.metrics.published(&topic);
                    return Ok(());
                }
                Err(status) => status,
            };
            if !may_pass(&status) || !self.pause(deadline).await {
                self.metrics.lost();
                let kind = Code::from_number(i32::from(status.code())).unwrap_or(Code::Unknown);
                return Err(Error::new(kind, status.message()));
            }
        }
    }

    fn patience(&self) -> Option<Duration> {
        // That of `publish` itself; this one is for a publisher that hangs.
        self.stopping.is_none().then_some(2 * PUBLISH_TIMEOUT)
    }
}

/// Whether trying again can help. After a deadline nobody knows whether the event was taken, and
/// events are told once.
fn may_pass(status: &Status) -> bool {
    status.code() == tonic::Code::Unavailable
}

/// Reads along, for ever; through restarts of containerd.
pub(crate) async fn observe(containerd: Containerd, manager: TaskManager, metrics: Arc<Metrics>) {
    loop {
        let followed = follow(&containerd, &manager, &metrics).await;
        manager.hears(Hearing::Nothing);
        if let Err(status) = followed {
            tracing::debug!(message = status.message(), "events of containerd are not read");
        }
        sleep(RETRY_PAUSE).await;
    }
}

async fn follow(
    containerd: &Containerd,
    manager: &TaskManager,
    metrics: &Metrics,
) -> Result<(), Status> {
    let mut events = containerd.subscribe(vec![TASK_TOPICS.to_owned()]).await?;
    manager.hears(Hearing::Since(SystemTime::now()));
    while let Some(event) = events.message().await? {
        metrics.observed(&event.topic);
        manager.observe(&convert::envelope_in(event)).await;
    }
    Ok(())
}
