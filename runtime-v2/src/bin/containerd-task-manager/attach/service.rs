//! Which call is whose.

use std::sync::Arc;

use async_trait::async_trait;
use runtime_proto::{
    manager, task,
    ttrpc::{Request, Status},
};
use runtime_v2::{Code, ttrpc::Handler};
use tokio::time::{Instant, timeout};

use super::{call::Call, manager::Method, place::Place, tasks};

/// Both services of the socket.
#[derive(Debug)]
pub(super) struct Service {
    place: Arc<Place>,
}

impl Service {
    /// The services over the manager that will be in this place.
    pub(super) fn new(place: Arc<Place>) -> Self {
        Self { place }
    }

    async fn answer(&self, call: &Call, request: &Request) -> Result<Vec<u8>, Status> {
        let method = request.method.as_str();
        match request.service.as_str() {
            manager::SERVICE => match Method::of(method) {
                Some(method) => method.serve(&self.place, call, &request.payload).await,
                None => Err(unknown(request)),
            },
            task::SERVICE_V3 => {
                let attached = self.place.attached()?;
                match tasks::serve(attached, call, method, &request.payload).await {
                    Some(answer) => answer,
                    None => Err(unknown(request)),
                }
            }
            _ => Err(unknown(request)),
        }
    }
}

fn unknown(request: &Request) -> Status {
    Code::Unimplemented.status(&format!("/{}/{} is not served", request.service, request.method))
}

#[async_trait]
impl Handler for Service {
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status> {
        let (call, begin) = (Call::of(&request), Instant::now());
        let answering = self.answer(&call, &request);
        let answer = match call.limit {
            None => answering.await,
            // As the caller does; what it has begun is undone, or goes on, as if it had hung up.
            Some(limit) => timeout(limit, answering)
                .await
                .unwrap_or_else(|_| Err(Code::DeadlineExceeded.status(""))),
        };
        tracing::debug!(
            method = request.method,
            failure = answer.as_ref().err().map(|status| status.message.as_str()),
            took = ?begin.elapsed(),
            "answered"
        );
        answer
    }
}
