//! Events: out to whoever embeds the manager, and the exchange that hands them to subscribers.

use std::time::Duration;

use async_trait::async_trait;
use runtime_proto::{any, errdefs::Code, events::Envelope, topics::Event, types::Timestamp};
use tokio::{sync::broadcast, time::timeout};

use crate::{
    error::{Error, Result},
    id::Namespace,
};

/// For an embedder to take one event; what it does with it may be a call to another process.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the manager's own events go.
///
/// The manager makes events only for tasks whose shim can no longer speak for them. All others
/// come from the shims, over the ttrpc socket of the daemon.
#[async_trait]
pub trait EventSink: Send + Sync + 'static {
    /// Hands on one event.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be handed on now, as when everything ends: what is left of the
    /// task is then kept, and the next manager of the state directory tells its end. With any
    /// other error the event is lost, and the log says so.
    async fn publish(&self, event: Envelope) -> Result<()>;

    /// How long the manager waits for one event to be handed on, after which it is lost; `None` is
    /// as long as the manager lives. Bundle and id of the task are kept meanwhile.
    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }
}

/// Hands on an event, within the sink's patience.
///
/// # Errors
/// Those of the sink; `DeadlineExceeded` if it does not take the event.
pub(crate) async fn hand_on(sink: &dyn EventSink, event: Envelope) -> Result<()> {
    let Some(patience) = sink.patience() else { return sink.publish(event).await };
    timeout(patience, sink.publish(event)).await.unwrap_or_else(|_| {
        Err(Error::new(Code::DeadlineExceeded, format!("not taken within {patience:?}")))
    })
}

/// Wraps an event for its journey.
///
/// # Errors
/// When the event cannot be encoded.
pub fn envelope<E: Event>(namespace: &Namespace, event: &E) -> Result<Envelope> {
    let packed = any::pack(event)
        .map_err(|error| Error::caused(Code::Internal, format!("pack {}", E::TOPIC), error))?;
    let mut envelope = Envelope::new();
    envelope.timestamp = Some(Timestamp::now()).into();
    envelope.namespace = namespace.to_string();
    E::TOPIC.clone_into(&mut envelope.topic);
    envelope.event = Some(packed).into();
    Ok(envelope)
}

/// An in-process bus: every subscriber gets every event since it came, up to a limit.
#[derive(Debug, Clone)]
pub struct Exchange {
    sender: broadcast::Sender<Envelope>,
}

impl Exchange {
    /// A bus that keeps `capacity` events for the slowest subscriber; one that is slower is told
    /// how many it missed, and nobody else is held up.
    pub fn new(capacity: usize) -> Self {
        Self { sender: broadcast::Sender::new(capacity) }
    }

    /// Everything from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Envelope> {
        self.sender.subscribe()
    }
}

#[async_trait]
impl EventSink for Exchange {
    async fn publish(&self, event: Envelope) -> Result<()> {
        // An error means that nobody has subscribed, which is no loss.
        let _ = self.sender.send(event);
        Ok(())
    }
}
