//! One shim as the manager sees it: a bundle, a connection, and what is needed to end both.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{bootstrap::Bootstrap, task::ShutdownRequest, types::Empty};
use tokio::time::timeout;

use crate::{
    bundle::Bundle,
    client::TaskClient,
    error::{Error, Result},
    id::Key,
    shim_log::ShimLog,
    socket_file, stray,
};

/// containerd's own `io.containerd.timeout.shim.shutdown`; a shim has little to do then.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// How an entry came to its shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Its `start` was run in this bundle. It may still have joined the shim of its group.
    Started,
    /// By the address of the sandbox it belongs to.
    Joined,
}

/// A shim, as it serves one bundle.
#[derive(Debug)]
pub struct Shim {
    bundle: Bundle,
    location: Bootstrap,
    client: TaskClient,
    binary: Option<PathBuf>,
    origin: Origin,
    log: Mutex<Option<ShimLog>>,
    /// Set when its end has begun; it then counts no more as a user of a shared process.
    ending: AtomicBool,
}

/// What a [`Shim`] is made of.
pub(crate) struct Parts {
    pub(crate) bundle: Bundle,
    pub(crate) location: Bootstrap,
    pub(crate) client: TaskClient,
    pub(crate) binary: Option<PathBuf>,
    pub(crate) origin: Origin,
    pub(crate) log: Option<ShimLog>,
}

impl Shim {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { bundle, location, client, binary, origin, log } = parts;
        let (log, ending) = (Mutex::new(log), AtomicBool::new(false));
        Self { bundle, location, client, binary, origin, log, ending }
    }

    /// Namespace and id.
    pub fn key(&self) -> &Key {
        self.bundle.key()
    }

    /// Its directory.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.location.address
    }

    /// The task API version spoken now.
    pub fn version(&self) -> i32 {
        self.client.version()
    }

    /// Where it listens and what it speaks now.
    pub fn location(&self) -> Bootstrap {
        Bootstrap { version: self.version(), ..self.location.clone() }
    }

    /// How this entry came to it.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The binary to run for `delete`, if it is known and still there.
    pub fn binary(&self) -> Option<&Path> {
        self.binary.as_deref()
    }

    pub(crate) fn client(&self) -> &TaskClient {
        &self.client
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// One call, with the id in its error.
    pub(crate) async fn call<A: Message, R: Message>(
        &self,
        method: &'static str,
        request: &A,
        limit: Option<Duration>,
    ) -> Result<R> {
        let called = self.client.call(method, request, limit).await;
        called.map_err(|error| Error::call(format!("{method} of {}", self.key()), error))
    }

    /// The first call; a downgrade it brings to light is written down before the answer is given,
    /// so that the next start of any manager begins with the truth.
    pub(crate) async fn first_call<A: Message, R: Message>(
        &self,
        method: &'static str,
        request: &A,
        limit: Option<Duration>,
    ) -> Result<R> {
        let called = self.client.first(method, request, limit).await;
        let first =
            called.map_err(|error| Error::call(format!("{method} of {}", self.key()), error))?;
        if first.downgraded {
            let (namespace, id) = (&self.key().namespace, &self.key().id);
            tracing::info!(%namespace, %id, version = self.version(), "shim speaks an older API than announced");
            let location = self.location();
            self.bundle.blocking(move |bundle| bundle.write_bootstrap(&location)).await?;
        }
        Ok(first.answer)
    }

    /// Asks the process to end, closes the connection, and reads the last of the log.
    ///
    /// A shim that serves other containers ignores the request until the last one. `alone` says
    /// that no other entry of the manager uses it: then one that was started must end, and is
    /// made to.
    pub(crate) async fn shut_down(&self, alone: impl Fn() -> bool) {
        self.ending.store(true, Ordering::Release);
        let alone = alone();
        let mut request = ShutdownRequest::new();
        request.id = self.key().id.to_string();
        let asked: Result<Empty> = self.call("Shutdown", &request, Some(SHUTDOWN_TIMEOUT)).await;
        if let Err(error) = asked
            && !error.is_closed()
        {
            tracing::debug!(key = %self.key(), %error, "shim refused to shut down");
        }
        if alone && self.origin == Origin::Started {
            // The answer comes before the end; too long a wait shows below.
            let _ = timeout(SHUTDOWN_TIMEOUT, self.client.closed()).await;
        }
        let ended = self.client.is_closed();
        self.close().await;
        if alone && ended {
            socket_file::remove_if_unused(self.address()).await;
        } else if alone {
            self.force_end().await;
        }
    }

    /// Closes the connection and stops reading the log.
    pub(crate) async fn close(&self) {
        self.ending.store(true, Ordering::Release);
        self.client.close();
        self.client.closed().await;
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(log) = log {
            log.finish().await;
        }
    }

    /// Makes sure of the end of a process that no other entry uses. One that was joined belongs
    /// to a sandbox, and is left alone.
    pub(crate) async fn force_end(&self) {
        if self.origin == Origin::Started {
            match stray::kill_shim_of(&self.bundle, self.binary()).await {
                Ok(0) => {}
                Ok(count) => {
                    tracing::warn!(key = %self.key(), count, "killed a shim that did not end");
                }
                Err(error) => tracing::warn!(key = %self.key(), %error, "a shim may be left"),
            }
        }
        socket_file::remove_if_unused(self.address()).await;
    }
}
