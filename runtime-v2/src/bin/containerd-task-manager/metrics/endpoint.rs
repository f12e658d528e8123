//! The page over HTTP/1.1, for Prometheus to fetch.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime_v2::TaskManager;
use tokio::{net::TcpListener, task::JoinSet, time::timeout};

use super::Metrics;

/// A scrape is one short request; whoever takes longer holds a descriptor for nothing.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Scrapes at one time. The port may be open to a network, and descriptors are for containers.
const MAX_SCRAPES: usize = 16;

/// The listening endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: std::net::TcpListener,
}

impl Endpoint {
    /// Binds `address`.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Serves until dropped.
    pub(crate) async fn serve(self, metrics: Arc<Metrics>, manager: TaskManager) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "metrics are not served");
                return;
            }
        };
        let mut scrapes = JoinSet::new();
        loop {
            if scrapes.len() >= MAX_SCRAPES {
                scrapes.join_next().await;
            }
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors; some come back with the scrapes.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            while scrapes.try_join_next().is_some() {}
            let (metrics, manager) = (Arc::clone(&metrics), manager.clone());
            let service = service_fn(move |request| {
                let answer = answer(&request, &metrics, &manager);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).keep_alive(false);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            // Whatever a stranger sends is no concern of ours.
            scrapes.spawn(async move { drop(timeout(SCRAPE_TIMEOUT, connection).await) });
        }
    }
}

fn answer<B>(
    request: &Request<B>,
    metrics: &Metrics,
    manager: &TaskManager,
) -> Response<Full<Bytes>> {
    let known = request.method() == Method::GET && request.uri().path() == "/metrics";
    let text = if known { metrics.text(manager) } else { "see /metrics\n".to_owned() };
    let mut response = Response::new(Full::from(text));
    if !known {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    let kind = header::HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
