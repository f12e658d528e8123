//! Events, in order, to containerd's ttrpc socket.
//!
//! One queue and one task that empties it: an event is sent when the one before it has arrived.
//! containerd being away, slow or silent delays events and never loses the end of a process, nor
//! holds up whoever publishes. An event that containerd refuses is dropped, since it would be
//! refused again. Calls that cause events wait while the queue is full and shrinks; where it does
//! not shrink, the least important of it are dropped.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use protobuf::Message;
use runtime_proto::{
    any,
    errdefs::Code,
    events::{self, Envelope, ForwardRequest},
    topics::Event,
    types::{Any, Timestamp},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use crate::rpc::client::{CallError, Client};

/// One attempt to hand over one event; containerd's own shims allow the same.
const ATTEMPT: Duration = Duration::from_secs(5);
/// First and longest pause between attempts while containerd is away. It is away for seconds when
/// it is restarted, and must find its exits soon after it is back.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often an event is sent again that is refused without a clear reason. The ones behind it wait.
const MAX_REFUSALS: u32 = 8;
/// How long a full queue has to stay as it is before nobody waits for room in it.
const STUCK: Duration = Duration::from_secs(1);
/// Events kept while containerd is away. One takes a few hundred bytes; ends of processes are
/// kept beyond this number.
const MAX_QUEUE: usize = 4096;

/// Where events are published. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    namespace: String,
    queue: Mutex<Queue>,
    /// Wakes the sender when something was queued.
    queued: Notify,
    /// Wakes those who wait for the queue to be empty.
    sent: Notify,
    /// Wakes one of those who wait for room in it.
    room: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Queued>,
    /// How many the sender has taken out of it.
    taken: u64,
    /// The sender holds an event that is not in `events` any more.
    sending: bool,
}

#[derive(Debug)]
struct Queued {
    topic: &'static str,
    event: Any,
    at: SystemTime,
    /// The end of something: never dropped.
    end: bool,
}

impl Publisher {
    /// A publisher for this namespace; nothing is sent before [`Publisher::run`].
    pub fn new(namespace: &str) -> Self {
        Self(Arc::new(Shared {
            namespace: namespace.to_owned(),
            queue: Mutex::default(),
            queued: Notify::new(),
            sent: Notify::new(),
            room: Notify::new(),
        }))
    }

    /// Queues an event. Never waits, never fails.
    pub fn publish<E: Event>(&self, event: &E) {
        let event = match any::pack(event) {
            Ok(event) => event,
            Err(error) => {
                tracing::error!(topic = E::TOPIC, %error, "event cannot be encoded");
                return;
            }
        };
        let end = E::TOPIC == events::TaskExit::TOPIC || E::TOPIC == events::TaskDelete::TOPIC;
        let mut queue = self.lock();
        if queue.events.len() >= MAX_QUEUE
            && let Some(index) = queue.events.iter().position(|queued| !queued.end)
            && let Some(dropped) = queue.events.remove(index)
        {
            tracing::warn!(topic = dropped.topic, "event dropped: too many wait for containerd");
        }
        queue.events.push_back(Queued { topic: E::TOPIC, event, at: SystemTime::now(), end });
        drop(queue);
        self.0.queued.notify_one();
    }

    /// Waits until the queue has room, for who is about to cause an event: calls may come faster than
    /// containerd takes what they cause. If it takes nothing at all, they are not held up by that.
    pub async fn room(&self) {
        let mut before = None;
        loop {
            let taken = {
                let queue = self.lock();
                if queue.events.len() < MAX_QUEUE {
                    return;
                }
                queue.taken
            };
            if before == Some(taken) {
                return;
            }
            // Woken, one may come too late for the room that there was.
            let woken = timeout(STUCK, self.0.room.notified()).await.is_ok();
            before = (!woken).then_some(taken);
        }
    }

    /// Sends what is queued to the socket at `address`, for as long as it is polled.
    pub async fn run(self, address: String) {
        let mut client = Client::new(&address);
        loop {
            let Some(event) = self.take() else {
                self.0.sent.notify_waiters();
                self.0.queued.notified().await;
                continue;
            };
            let topic = event.topic;
            let request = self.request(event);
            match request.write_to_bytes() {
                Ok(bytes) => send(&mut client, topic, &bytes).await,
                Err(error) => tracing::error!(%error, "event cannot be encoded"),
            }
            self.lock().sending = false;
        }
    }

    /// Waits until everything queued so far was sent, or `limit` is over. True if it was.
    pub async fn drain(&self, limit: Duration) -> bool {
        let empty = async {
            loop {
                let sent = self.0.sent.notified();
                {
                    let queue = self.lock();
                    if queue.events.is_empty() && !queue.sending {
                        return;
                    }
                }
                sent.await;
            }
        };
        timeout(limit, empty).await.is_ok()
    }

    /// Events not sent yet.
    pub fn backlog(&self) -> usize {
        let queue = self.lock();
        queue.events.len() + usize::from(queue.sending)
    }

    fn take(&self) -> Option<Queued> {
        let mut queue = self.lock();
        let event = queue.events.pop_front()?;
        queue.sending = true;
        queue.taken += 1;
        self.0.room.notify_one();
        if queue.events.is_empty() {
            // A burst is over: its memory is not needed again soon.
            queue.events = VecDeque::new();
        }
        Some(event)
    }

    fn request(&self, queued: Queued) -> ForwardRequest {
        let mut envelope = Envelope::new();
        envelope.timestamp = Some(timestamp(queued.at)).into();
        envelope.namespace.clone_from(&self.0.namespace);
        queued.topic.clone_into(&mut envelope.topic);
        envelope.event = Some(queued.event).into();
        let mut request = ForwardRequest::new();
        request.envelope = Some(envelope).into();
        request
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is whole at every point where a holder could panic.
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands one event over, however long that takes.
async fn send(client: &mut Client, topic: &str, request: &[u8]) {
    let (mut pause, longest) = PAUSES;
    let mut refusals = 0;
    loop {
        match client.call(events::SERVICE, "Forward", request, ATTEMPT).await {
            Ok(_) => return,
            Err(CallError::Status(code, message)) if refusals == MAX_REFUSALS || is_final(code) => {
                tracing::error!(topic, %code, message, "containerd refused an event");
                return;
            }
            Err(CallError::Unsendable(why)) => {
                tracing::error!(topic, why, "event dropped");
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "event not sent, will be sent again");
                refusals +=
                    u32::from(matches!(&error, CallError::Status(code, _) if !is_passing(*code)));
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}

/// Whether it is the time that is wrong, and not the event.
fn is_passing(code: Code) -> bool {
    use Code::{Aborted, Canceled, DeadlineExceeded, ResourceExhausted, Unavailable};
    matches!(code, Aborted | Canceled | DeadlineExceeded | ResourceExhausted | Unavailable)
}

/// Whether the same event would be refused again.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::OutOfRange
            | Code::FailedPrecondition
    )
}

/// A point in time as protobuf has it.
pub fn timestamp(at: SystemTime) -> Timestamp {
    let (seconds, nanos) = match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        // Before 1970 there is only Go's zero time, which has whole seconds.
        Err(before) => {
            (i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |secs| -secs), 0)
        }
    };
    let mut timestamp = Timestamp::new();
    timestamp.seconds = seconds;
    timestamp.nanos = nanos.cast_signed();
    timestamp
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Publisher {
        let publisher = Publisher::new("ns");
        (0..MAX_QUEUE).for_each(|_| publisher.publish(&events::TaskPaused::new()));
        publisher
    }

    #[tokio::test(start_paused = true)]
    async fn room_in_a_full_queue_is_waited_for_as_long_as_it_moves() {
        let publisher = full();
        let waiting = publisher.room();
        tokio::pin!(waiting);
        // It moves, and somebody else is always faster.
        for _ in 0..10 {
            assert!(timeout(STUCK * 9 / 10, &mut waiting).await.is_err());
            publisher.take();
            publisher.publish(&events::TaskPaused::new());
        }
        assert!(timeout(STUCK / 10, &mut waiting).await.is_err());
        publisher.take();
        timeout(Duration::from_millis(1), &mut waiting).await.expect("there is room");
        assert_eq!(publisher.lock().events.len(), MAX_QUEUE - 1, "none was dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_stuck_holds_nobody_up_for_long() {
        let publisher = full();
        timeout(STUCK * 3, publisher.room()).await.expect("given up");
        publisher.publish(&events::TaskExit::new());
        let queue = publisher.lock();
        assert_eq!(queue.events.len(), MAX_QUEUE);
        assert!(queue.events.back().is_some_and(|last| last.end), "ends are kept");
    }
}
