//! The containerd behind: its records, its content, its events.

mod channel;
mod content;

pub(crate) use channel::Channel;

use std::{path::Path, sync::Arc, time::Duration};

use prost::Message;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataValue},
};
use tonic_prost::ProstCodec;

use crate::{
    api::{
        Mount,
        containers::{self, Container, GetContainerRequest, GetContainerResponse},
        events::{self, Envelope, ForwardRequest, SubscribeRequest},
        introspection::{self, PluginInfoRequest, PluginInfoResponse},
        mounts::{self, ActivateRequest, ActivationResponse, NameRequest},
        sandbox::{self, StoreGetRequest, StoreGetResponse},
    },
    grpc::{LEASE_HEADER, MAX_MESSAGE, NAMESPACE_HEADER},
};

/// Records come from a local database that may be busy with a large write.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

/// A plugin may have to run a program to know.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Mounts may run `mkfs` or set up devices.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(120);

/// Ties a mount activation to its container, for containerd's garbage collection.
const CONTAINER_REFERENCE: &str = "containerd.io/gc.bref.container";

/// On whose behalf a call is made.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// The client's namespace.
    pub(crate) namespace: String,
    /// The lease that keeps what the call makes, if the client has one.
    pub(crate) lease: Option<MetadataValue<Ascii>>,
}

impl Scope {
    /// The namespace without a lease.
    pub(crate) fn of(namespace: impl ToString) -> Self {
        Self { namespace: namespace.to_string(), lease: None }
    }
}

/// Client of the containerd behind. Clones share one connection.
#[derive(Debug, Clone)]
pub(crate) struct Containerd {
    channel: Channel,
}

impl Containerd {
    /// A client; nothing is connected yet.
    pub(crate) fn new(address: Arc<Path>) -> Self {
        Self { channel: Channel::new(address) }
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }

    async fn unary<A, R>(
        &self,
        scope: &Scope,
        path: &'static str,
        message: A,
        limit: Duration,
    ) -> Result<R, Status>
    where
        A: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let mut request = scoped(scope, message)?;
        request.set_timeout(limit);
        let codec = ProstCodec::<A, R>::default();
        let mut grpc = self.grpc();
        let answer = grpc.unary(request, PathAndQuery::from_static(path), codec);
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer to {path} in {limit:?}"))),
        }
    }

    /// The record of a container, if there is one.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub(crate) async fn container(
        &self,
        scope: &Scope,
        id: &str,
    ) -> Result<Option<Container>, Status> {
        let request = GetContainerRequest { id: id.to_owned() };
        let answer: Result<GetContainerResponse, _> =
            self.unary(scope, containers::GET, request, RECORD_TIMEOUT).await;
        match answer {
            Ok(answer) => Ok(answer.container),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Whether there is a sandbox of this id. A containerd older than sandboxes has none.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub(crate) async fn has_sandbox(&self, scope: &Scope, id: &str) -> Result<bool, Status> {
        let request = StoreGetRequest { sandbox_id: id.to_owned() };
        let answer: Result<StoreGetResponse, _> =
            self.unary(scope, sandbox::GET, request, RECORD_TIMEOUT).await;
        match answer {
            Ok(_) => Ok(true),
            Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => {
                Ok(false)
            }
            Err(status) => Err(status),
        }
    }

    /// Has containerd mount what only it can mount; gives what is left for the shim, and whether
    /// this call has made the others. One older than such mounts leaves all.
    ///
    /// # Errors
    /// When a mount failed.
    pub(crate) async fn activate(
        &self,
        scope: &Scope,
        id: &str,
        mounts: Vec<Mount>,
    ) -> Result<(Vec<Mount>, bool), Status> {
        let labels = [(CONTAINER_REFERENCE.to_owned(), id.to_owned())].into();
        let request = ActivateRequest { name: id.to_owned(), mounts: mounts.clone(), labels };
        let answer: Result<ActivationResponse, _> =
            self.unary(scope, mounts::ACTIVATE, request, MOUNT_TIMEOUT).await;
        let (answer, ours) = match answer {
            // An older one, or one that leaves such mounts to shims.
            Err(status) if status.code() == Code::Unimplemented => {
                return Ok((mounts, false));
            }
            Err(status) if status.code() == Code::AlreadyExists => {
                let request = NameRequest { name: id.to_owned() };
                (self.unary(scope, mounts::INFO, request, RECORD_TIMEOUT).await?, false)
            }
            other => (other?, true),
        };
        Ok((answer.info.map_or(mounts, |info| info.system), ours))
    }

    /// Undoes [`Containerd::activate`], as far as there is something to undo.
    ///
    /// # Errors
    /// When an unmount failed; containerd's garbage collection tries again.
    pub(crate) async fn deactivate(&self, scope: &Scope, id: &str) -> Result<(), Status> {
        let request = NameRequest { name: id.to_owned() };
        match self.unary(scope, mounts::DEACTIVATE, request, MOUNT_TIMEOUT).await {
            Err(status) if matches!(status.code(), Code::NotFound | Code::Unimplemented) => Ok(()),
            other => other,
        }
    }

    /// What is known of a plugin.
    ///
    /// # Errors
    /// When there is none, or it is not known to this containerd's version how to ask.
    pub(crate) async fn plugin_info(
        &self,
        scope: &Scope,
        request: PluginInfoRequest,
    ) -> Result<PluginInfoResponse, Status> {
        self.unary(scope, introspection::PLUGIN_INFO, request, PLUGIN_TIMEOUT).await
    }

    /// Hands an event to containerd's subscribers.
    ///
    /// # Errors
    /// When it was not taken.
    pub(crate) async fn forward(&self, envelope: Envelope) -> Result<(), Status> {
        let scope = Scope::of(&envelope.namespace);
        let request = ForwardRequest { envelope: Some(envelope) };
        self.unary(&scope, events::FORWARD, request, RECORD_TIMEOUT).await
    }

    /// All events of all namespaces that pass one of the filters, from now on.
    ///
    /// # Errors
    /// When containerd is away.
    pub(crate) async fn subscribe(
        &self,
        filters: Vec<String>,
    ) -> Result<Streaming<Envelope>, Status> {
        let codec = ProstCodec::<SubscribeRequest, Envelope>::default();
        let request = Request::new(SubscribeRequest { filters });
        let path = PathAndQuery::from_static(events::SUBSCRIBE);
        self.grpc().server_streaming(request, path, codec).await.map(tonic::Response::into_inner)
    }
}

/// A request on somebody's behalf.
fn scoped<T>(scope: &Scope, message: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(message);
    let namespace = scope.namespace.parse().map_err(|_| {
        Status::invalid_argument(format!("invalid namespace {:?}", scope.namespace))
    })?;
    request.metadata_mut().insert(NAMESPACE_HEADER, namespace);
    if let Some(lease) = &scope.lease {
        request.metadata_mut().insert(LEASE_HEADER, lease.clone());
    }
    Ok(request)
}
