//! `containerd.services.tasks.v1.Tasks`: decode, one call of the manager, encode.
//!
//! Answers are those of containerd's own service (plugins/services/tasks/local.go), with one
//! difference on purpose: a task that exists is found without asking for its container's record,
//! so that running containers can be looked after while containerd is away.

mod call;
mod checkpoint;
mod create;
mod filter;
mod list;
mod verbs;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hyper::{Request, Response};
use runtime_v2::{Key, TaskManager};
use tempfile::TempDir;
use tonic::{Code, Status, body::Body};
use tracing::Instrument;

use crate::{api::tasks::SERVICE, containerd::Containerd, grpc::unary, metrics::Metrics};
use call::Call;

/// The service.
#[derive(Debug)]
pub(crate) struct Tasks {
    manager: TaskManager,
    containerd: Containerd,
    metrics: Arc<Metrics>,
    /// Checkpoints of tasks that are created and not yet started. A plain lock: never held over
    /// an await.
    restores: Mutex<HashMap<Key, TempDir>>,
}

macro_rules! methods {
    ($($name:ident => $handler:ident,)+) => {
        /// A method of the service.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Method {
            $($name,)+
            /// One that is newer than this daemon.
            Unknown,
        }

        impl Method {
            fn of(name: &str) -> Self {
                match name {
                    $(stringify!($name) => Method::$name,)+
                    _ => Method::Unknown,
                }
            }

            fn name(self) -> &'static str {
                match self {
                    $(Method::$name => stringify!($name),)+
                    Method::Unknown => "unknown",
                }
            }
        }

        impl Tasks {
            async fn dispatch(
                self: &Arc<Self>,
                method: Method,
                call: Call,
                request: Request<Body>,
            ) -> Response<Body> {
                let this = Arc::clone(self);
                match method {
                    $(Method::$name => {
                        unary(request, async move |message| this.$handler(&call, message).await)
                            .await
                    })+
                    Method::Unknown => {
                        let path = request.uri().path();
                        Status::unimplemented(format!("unknown method {path}")).into_http()
                    }
                }
            }
        }
    };
}

methods! {
    Create => create,
    Start => start,
    Delete => delete,
    DeleteProcess => delete_process,
    Get => get,
    List => list,
    Kill => kill,
    Exec => exec,
    ResizePty => resize_pty,
    CloseIO => close_io,
    Pause => pause,
    Resume => resume,
    ListPids => list_pids,
    Checkpoint => checkpoint,
    Update => update,
    Metrics => stats,
    Wait => wait,
}

impl Tasks {
    /// The service over a manager, with the records of a containerd.
    pub(crate) fn new(manager: TaskManager, containerd: Containerd, metrics: Arc<Metrics>) -> Self {
        Self { manager, containerd, metrics, restores: Mutex::default() }
    }

    fn restores(&self) -> MutexGuard<'_, HashMap<Key, TempDir>> {
        self.restores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The method that a path names, if it is one of this service.
    pub(crate) fn method(&self, path: &str) -> Option<Method> {
        let name = path.strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')?;
        Some(Method::of(name))
    }

    /// Serves one call.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        method: Method,
        request: Request<Body>,
    ) -> Response<Body> {
        let begin = Instant::now();
        let response = match Call::of(request.headers()) {
            Ok(call) => {
                let span = tracing::info_span!("call", method = method.name(), namespace = %call.namespace);
                self.dispatch(method, call, request).instrument(span).await
            }
            Err(status) => status.into_http(),
        };
        // An error is in the headers; what succeeds says so behind its message.
        let failure = response.extensions().get::<Status>();
        let code = failure.map_or(Code::Ok, Status::code);
        let took = begin.elapsed();
        self.metrics.called(method.name(), code, took);
        tracing::debug!(
            method = method.name(),
            ?code,
            ?took,
            failure = failure.map(Status::message),
            "answered"
        );
        response
    }
}
