//! Which call is whose.

use std::sync::Arc;

use async_trait::async_trait;
use runtime_proto::{
    manager, task,
    ttrpc::{Request, Status},
};
use runtime_v2::{
    Code,
    ttrpc::{Answer, Client, Handler},
};
use tokio::time::{Instant, timeout};

use super::{
    call::{Call, decode, encode},
    create,
    manager::Method,
    place::Place,
    tasks,
};

/// The manager's longest call.
const CREATE: &str = "Create";

/// What is counted by name, of the service of all tasks and of that of one.
const OF_MANAGER: [&str; 6] = [CREATE, "Load", "Get", "List", "Delete", "Info"];
const OF_TASK: [&str; 14] = [
    "State",
    "Start",
    "Pids",
    "Pause",
    "Resume",
    "Checkpoint",
    "Kill",
    "Exec",
    "ResizePty",
    "CloseIO",
    "Update",
    "Wait",
    "Stats",
    "Connect",
];

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

    async fn answer(&self, call: &Call, request: &Request) -> Answer {
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

    /// Counts and says what was called, what it came to, and how long that took.
    async fn counted(&self, request: &Request, answering: impl Future<Output = Answer>) -> Answer {
        let begin = Instant::now();
        let answer = answering.await;
        let took = begin.elapsed();
        let failure = answer.as_ref().err();
        let code = failure.map_or(0, |status| status.code.value());
        self.place.metrics.called(name(request), tonic::Code::from_i32(code), took);
        let (method, failure) = (&request.method, failure.map(|status| status.message.as_str()));
        tracing::debug!(method, failure, ?took, "answered");
        answer
    }

    /// The call that changes the host and is undone when it is given up, which it is told of.
    async fn create(&self, call: &Call, request: &Request, client: Client) -> Answer {
        let request = decode(&request.payload)?;
        encode(&create::create(&self.place, call, client, request).await?)
    }
}

fn unknown(request: &Request) -> Status {
    Code::Unimplemented.status(&format!("/{}/{} is not served", request.service, request.method))
}

#[async_trait]
impl Handler for Service {
    async fn call(&self, request: Request) -> Answer {
        let call = Call::of(&request);
        let answering = self.answer(&call, &request);
        let answering = async {
            match call.limit {
                None => answering.await,
                // As the caller does; what it has begun goes on, as if it had hung up.
                Some(limit) => timeout(limit, answering)
                    .await
                    .unwrap_or_else(|_| Err(Code::DeadlineExceeded.status(""))),
            }
        };
        self.counted(&request, answering).await
    }

    async fn call_until(&self, request: Request, mut client: Client) -> Option<Answer> {
        if (request.service.as_str(), request.method.as_str()) == (manager::SERVICE, CREATE) {
            let call = Call::of(&request);
            return Some(self.counted(&request, self.create(&call, &request, client)).await);
        }
        tokio::select! {
            answer = self.call(request) => Some(answer),
            () = client.left() => None,
        }
    }
}

/// The name by which a call is counted. Whatever else is called for, is one name: they are kept for good.
fn name(request: &Request) -> &'static str {
    let method = request.method.as_str();
    let known = |names: &'static [&'static str]| names.iter().copied().find(|name| *name == method);
    let named = match request.service.as_str() {
        manager::SERVICE => known(&OF_MANAGER),
        // As containerd's own service has it: of the two deletions, this is that of an exec.
        task::SERVICE_V3 if method == "Delete" => Some("DeleteProcess"),
        task::SERVICE_V3 => known(&OF_TASK),
        _ => None,
    };
    named.unwrap_or("unknown")
}
