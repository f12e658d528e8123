//! A shim's task service, whichever version it speaks.
//!
//! The messages of v2 and v3 are the same; only the name of the service differs, so the version
//! is one number per connection. A connection that was announced as v3 may turn out to lead to a
//! shim of v2: after an upgrade of the package, the new `start` answers for the old process of
//! the same pod. [`TaskClient::first`] finds that out.

use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicI32, Ordering},
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{
    NAMESPACE_KEY,
    bootstrap::{Bootstrap, MIN_VERSION, Protocol},
    errdefs::Code,
    task,
};
use tokio::time::timeout;

use crate::{
    address,
    error::{Error, Result},
    grpc::GrpcConnection,
    id::Namespace,
    ttrpc::{CallError, Connection},
};

/// A connection to a shim's task service.
#[derive(Debug)]
pub struct TaskClient {
    channel: Channel,
    version: AtomicI32,
    /// Held while a downgrade is being found out, so that it happens once.
    downgrade: tokio::sync::Mutex<()>,
}

/// A connection of either transport.
#[derive(Debug)]
enum Channel {
    Ttrpc(Connection),
    Grpc(GrpcConnection),
}

/// What the first call on a connection brought.
#[derive(Debug)]
pub(crate) struct First<T> {
    /// The answer.
    pub(crate) answer: T,
    /// Whether this very call moved the connection to v2, which is then to be remembered.
    pub(crate) downgraded: bool,
}

impl TaskClient {
    /// Connects to where a shim said it is.
    ///
    /// # Errors
    /// When nobody answers there within `limit`.
    pub(crate) async fn connect(
        bootstrap: &Bootstrap,
        namespace: &Namespace,
        limit: Duration,
    ) -> Result<Self> {
        let channel = match bootstrap.protocol {
            Protocol::Ttrpc => {
                let stream = address::dial(&bootstrap.address, limit).await?;
                let metadata = vec![(NAMESPACE_KEY.to_owned(), namespace.to_string())];
                Channel::Ttrpc(Connection::new(stream, metadata))
            }
            Protocol::Grpc => {
                // Such addresses are bare paths as a rule.
                let address = match bootstrap.address.strip_prefix('/') {
                    Some(path) => format!("unix:///{path}"),
                    None => bootstrap.address.clone(),
                };
                let stream = address::dial(&address, limit).await?;
                let opened = GrpcConnection::new(stream, namespace.to_string());
                let failed = |error| Error::io(format!("speak gRPC at {address}"), error);
                let late = |_| failed(io::ErrorKind::TimedOut.into());
                Channel::Grpc(timeout(limit, opened).await.map_err(late)?.map_err(failed)?)
            }
        };
        Ok(Self::over(channel, bootstrap.version))
    }

    fn over(channel: Channel, version: i32) -> Self {
        Self { channel, version: AtomicI32::new(version), downgrade: tokio::sync::Mutex::default() }
    }

    /// The task API version spoken now.
    pub fn version(&self) -> i32 {
        self.version.load(Ordering::Acquire)
    }

    /// One call. `limit` of `None` is for calls that last as long as a process does.
    ///
    /// # Errors
    /// One of [`CallError`].
    pub(crate) async fn call<A: Message, R: Message>(
        &self,
        method: &str,
        request: &A,
        limit: Option<Duration>,
    ) -> Result<R, CallError> {
        let payload =
            request.write_to_bytes().map_err(|error| CallError::Garbled(error.to_string()))?;
        let answer = self.send(self.version(), method, payload, limit).await?;
        R::parse_from_bytes(&answer).map_err(|error| CallError::Garbled(error.to_string()))
    }

    /// The first call on a connection: if the shim does not know v3, v2 is spoken from here on
    /// and the call repeated, once. If it does not know v2 either, it was the call that it refused, and everything is as before.
    ///
    /// # Errors
    /// One of [`CallError`].
    pub(crate) async fn first<A: Message, R: Message>(
        &self,
        method: &str,
        request: &A,
        limit: Option<Duration>,
    ) -> Result<First<R>, CallError> {
        let tried = self.version();
        let refusal = match self.call(method, request, limit).await {
            Ok(answer) => return Ok(First { answer, downgraded: false }),
            Err(error) => error,
        };
        if tried <= MIN_VERSION || !is_unknown_service(&refusal, service(tried)) {
            return Err(refusal);
        }
        let downgraded = {
            let _one = self.downgrade.lock().await;
            self.version.swap(MIN_VERSION, Ordering::AcqRel) != MIN_VERSION
        };
        match self.call(method, request, limit).await {
            Ok(answer) => Ok(First { answer, downgraded }),
            Err(error) if is_unknown_service(&error, service(MIN_VERSION)) => {
                self.version.store(tried, Ordering::Release);
                Err(refusal)
            }
            Err(error) => Err(error),
        }
    }

    async fn send(
        &self,
        version: i32,
        method: &str,
        payload: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, CallError> {
        match &self.channel {
            Channel::Ttrpc(channel) => channel.call(service(version), method, payload, limit).await,
            Channel::Grpc(channel) => channel.call(service(version), method, &payload, limit).await,
        }
    }

    /// Returns when the connection is closed.
    pub async fn closed(&self) {
        self.when_closed().await;
    }

    /// The same, without keeping the connection open.
    pub(crate) fn when_closed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match &self.channel {
            Channel::Ttrpc(channel) => Box::pin(channel.when_closed()),
            Channel::Grpc(channel) => Box::pin(channel.when_closed()),
        }
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        match &self.channel {
            Channel::Ttrpc(channel) => channel.is_closed(),
            Channel::Grpc(channel) => channel.is_closed(),
        }
    }

    /// Closes the connection.
    pub fn close(&self) {
        match &self.channel {
            Channel::Ttrpc(channel) => channel.close(),
            Channel::Grpc(channel) => channel.close(),
        }
    }
}

fn service(version: i32) -> &'static str {
    if version <= MIN_VERSION { task::SERVICE_V2 } else { task::SERVICE_V3 }
}

/// Whether a refusal says that the peer does not serve `service` at all.
///
/// Go's server says Unimplemented. The Rust server of the published shims says InvalidArgument,
/// which alone could mean the request; its text, fixed by its source, is what tells.
fn is_unknown_service(refusal: &CallError, service: &str) -> bool {
    match refusal {
        CallError::Refused { code: Code::Unimplemented, .. } => true,
        CallError::Refused { code: Code::InvalidArgument, message } => {
            message.contains(service) && message.ends_with("does not exist")
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
