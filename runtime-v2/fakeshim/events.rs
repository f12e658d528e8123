//! Events, sent before the call that caused them is answered, so that a test need not wait.

use std::time::Duration;

use protobuf::Message;
use runtime_proto::{
    bootstrap::ENV_TTRPC_ADDRESS, events::ForwardRequest, events::SERVICE, topics::Event,
};
use runtime_v2::{Namespace, events::envelope, ttrpc::Connection};
use tokio::{net::UnixStream, sync::Mutex};

/// Only a hang meets it.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(20);

/// Between two tries to reach a manager that is away.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Publisher {
    namespace: String,
    /// Made anew when a manager has gone and another may have come.
    connection: Mutex<Option<Connection>>,
}

impl Publisher {
    pub(crate) fn new(namespace: String) -> Self {
        Self { namespace, connection: Mutex::default() }
    }

    /// Best effort: many tests have nobody who listens.
    pub(crate) async fn publish<E: Event>(&self, event: &E) {
        self.forward(event).await;
    }

    /// Whoever listens by then gets it; nobody may have come yet.
    pub(crate) async fn publish_later<E: Event>(&self, event: &E, delay: Duration) {
        tokio::time::sleep(delay).await;
        while self.forward(event).await.is_none() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn forward<E: Event>(&self, event: &E) -> Option<()> {
        let namespace = Namespace::new(self.namespace.as_str()).ok()?;
        let connection = self.connection().await?;
        let mut request = ForwardRequest::new();
        request.envelope = Some(envelope(&namespace, event).ok()?).into();
        let payload = request.write_to_bytes().ok()?;
        let told = connection.call(SERVICE, "Forward", payload, Some(FORWARD_TIMEOUT)).await;
        told.ok().map(drop)
    }

    async fn connection(&self) -> Option<Connection> {
        let mut held = self.connection.lock().await;
        if held.as_ref().is_none_or(Connection::is_closed) {
            *held = connect().await.ok();
        }
        held.clone()
    }
}

async fn connect() -> std::io::Result<Connection> {
    let address = std::env::var(ENV_TTRPC_ADDRESS).unwrap_or_default();
    Ok(Connection::new(UnixStream::connect(address).await?, Vec::new()))
}
