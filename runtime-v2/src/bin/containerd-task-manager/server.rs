//! The gRPC server: connections in, each call to the task service or through to containerd.

use std::{convert::Infallible, io, path::Path, sync::Arc, time::Duration};

use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::body::Body;

use crate::{
    api::introspection::PLUGIN_INFO,
    containerd::Channel,
    grpc::{CONNECTION_WINDOW, MAX_HEADERS, STREAM_WINDOW},
    introspection::Introspection,
    proxy,
    tasks::Tasks,
};

/// When descriptors have run out, accepting fails at once and again: some may be free by then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Calls at one time on one connection. A client that waits for every container of a large node
/// has one call for each.
const MAX_STREAMS: u32 = 100_000;

/// For the answers that are ready to reach their clients at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// What serves all connections.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    tasks: Arc<Tasks>,
    introspection: Introspection,
    containerd: Arc<Path>,
}

impl Server {
    /// A server in front of the containerd at `containerd`.
    pub(crate) fn new(
        tasks: Arc<Tasks>,
        introspection: Introspection,
        containerd: Arc<Path>,
    ) -> Self {
        Self { tasks, introspection, containerd }
    }

    /// Serves until `stop` says so; then takes no more connections or calls, and ends when
    /// `finished` says that all work is done and answers had a moment to leave.
    pub(crate) async fn serve(
        self,
        listener: UnixListener,
        mut stop: watch::Receiver<bool>,
        finished: impl Future<Output = ()>,
    ) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(self.clone().connection(stream, stop.clone()));
                    }
                    Err(error) => self.refused(&error).await,
                },
                // Kept small: ended connections are collected as others come.
                Some(_) = connections.join_next() => {}
                () = told(&mut stop) => break,
            }
        }
        drop(listener);
        finished.await;
        let ended = async { while connections.join_next().await.is_some() {} };
        // Streams that never end, such as subscriptions, are cut off with the rest.
        let _ = timeout(DRAIN_TIMEOUT, ended).await;
        connections.shutdown().await;
    }

    async fn refused(&self, error: &io::Error) {
        tracing::warn!(%error, "a connection cannot be accepted");
        sleep(ACCEPT_PAUSE).await;
    }

    async fn connection(self, stream: UnixStream, mut stop: watch::Receiver<bool>) {
        let channel = Channel::new(Arc::clone(&self.containerd));
        let service = service_fn(move |request| {
            let (server, channel) = (self.clone(), channel.clone());
            async move { Ok::<_, Infallible>(server.route(&channel, request).await) }
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
        builder.max_header_list_size(MAX_HEADERS);
        builder.initial_stream_window_size(STREAM_WINDOW);
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let served = tokio::select! {
            served = &mut connection => served,
            () = told(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "connection of a client ended");
        }
    }

    async fn route(&self, channel: &Channel, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if let Some(method) = self.tasks.method(path) {
            return self.tasks.serve(method, request.map(Body::new)).await;
        }
        if path == PLUGIN_INFO {
            return self.introspection.serve(request.map(Body::new)).await;
        }
        proxy::pass(channel, request).await
    }
}

/// Returns when it is time to stop. A sender that is gone says so too.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
