//! One shim as the manager sees it: a bundle, a connection, and what is needed to end both.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use protobuf::Message;
use runtime_proto::{bootstrap::Bootstrap, task::ShutdownRequest, types::Empty};
use tokio::time::{Instant, timeout_at};

use crate::{
    bundle::{Bundle, Origin},
    client::{First, TaskClient},
    error::{self, Result},
    id::Key,
    procfs,
    shim_log::ShimLog,
    shim_users::{Use, Users},
    socket_file,
    stray::{self, Seen},
};

/// A shim, as it serves one bundle.
#[derive(Debug)]
pub struct Shim {
    bundle: Bundle,
    location: Bootstrap,
    client: TaskClient,
    binary: Option<PathBuf>,
    origin: Origin,
    log: Mutex<Option<ShimLog>>,
    /// When it was connected to; its process had been started by then.
    connected: u64,
    /// Its use of the process, which may be shared; given up when its end begins.
    using: Mutex<Option<Use>>,
    users: Users,
}

/// What a [`Shim`] is made of.
pub(crate) struct Parts {
    pub(crate) bundle: Bundle,
    pub(crate) location: Bootstrap,
    pub(crate) client: TaskClient,
    pub(crate) binary: Option<PathBuf>,
    pub(crate) origin: Origin,
    pub(crate) log: Option<ShimLog>,
    pub(crate) users: Users,
}

impl Shim {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { bundle, location, client, binary, origin, log, users } = parts;
        let using = Mutex::new(Some(users.begin(&location.address, origin.is_ours())));
        let (connected, log) = (procfs::now(), Mutex::new(log));
        Self { bundle, location, client, binary, origin, log, connected, using, users }
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

    /// Whether it turned out to speak an older API than it had announced.
    pub fn is_downgraded(&self) -> bool {
        self.version() != self.location.version
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

    /// Whether its end has begun.
    pub(crate) fn is_ending(&self) -> bool {
        self.using.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Says that it is an entry now, and the process knows what it is for.
    pub(crate) fn settle(&self) {
        let mut using = self.using.lock().unwrap_or_else(PoisonError::into_inner);
        using.as_mut().into_iter().for_each(Use::settle);
    }

    fn begin_end(&self) {
        self.using.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether nobody else in this manager uses the process; for a shim whose end has begun.
    fn is_unused(&self) -> bool {
        !self.users.any(self.address())
    }

    /// One call, with the id in its error.
    pub(crate) async fn call<A: Message, R: Message>(
        &self,
        method: &'static str,
        request: &A,
        limit: Option<Duration>,
    ) -> Result<R> {
        let called = self.client.call(method, request, limit).await;
        called.map_err(|error| error::call(format!("{method} of {}", self.key()), error))
    }

    /// The first call, which may bring to light that the shim speaks an older API than announced.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn first_call<A: Message, R: Message>(
        &self,
        method: &'static str,
        request: &A,
        limit: Option<Duration>,
    ) -> Result<First<R>> {
        let called = self.client.first(method, request, limit).await;
        called.map_err(|error| error::call(format!("{method} of {}", self.key()), error))
    }

    /// Writes down what that call brought to light, so that the next start of any manager begins
    /// with the truth.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) async fn note_downgrade(&self) -> Result<()> {
        let (namespace, id) = (&self.key().namespace, &self.key().id);
        tracing::info!(%namespace, %id, version = self.version(), "shim speaks an older API than announced");
        let location = self.location();
        self.bundle.blocking(move |bundle| bundle.write_bootstrap(&location)).await
    }

    /// Asks the process to end, closes the connection, and reads the last of the log.
    ///
    /// A shim that serves other containers ignores the request until the last one. If no other
    /// entry of the manager uses it, one that it started must end, and is made to. One that is just
    /// making another container may not know so yet, and would obey: it is asked when that container
    /// goes, whatever becomes of it.
    pub(crate) async fn shut_down(&self, limit: Duration) {
        self.begin_end();
        if self.users.is_awaited(self.address()) {
            return self.close().await;
        }
        let deadline = Instant::now() + limit;
        let mut request = ShutdownRequest::new();
        request.id = self.key().id.to_string();
        let asked: Result<Empty> = self.call("Shutdown", &request, Some(limit)).await;
        match asked {
            // The answer comes before the end; too long a wait shows below.
            Ok(_) if self.is_unused() && self.origin.is_ours() => {
                let _ = timeout_at(deadline, self.client.closed()).await;
            }
            Err(error) if !error::is_closed(&error) => {
                tracing::debug!(key = %self.key(), %error, "shim refused to shut down");
            }
            Ok(_) | Err(_) => {}
        }
        let ended = self.client.is_closed();
        self.close().await;
        if !ended {
            self.force_end().await;
        }
        self.remove_socket().await;
    }

    /// Closes the connection and stops reading the log.
    pub(crate) async fn close(&self) {
        self.begin_end();
        self.client.close();
        self.client.closed().await;
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(log) = log {
            log.finish().await;
        }
    }

    /// Makes sure of the end of a process, unless it is still used or somebody else looks after it.
    pub(crate) async fn force_end(&self) {
        if self.origin.is_ours() && self.is_unused() {
            let (binary, seen) = (self.binary(), Some(self.seen()));
            stray::make_sure(&self.bundle, binary, seen, &self.users).await;
        }
    }

    /// Ends what a process that goes on for others is still doing for this bundle.
    pub(crate) async fn end_calls(&self) {
        if !self.is_unused() {
            stray::end_calls(&self.bundle, self.binary(), self.seen()).await;
        }
    }

    fn seen(&self) -> Seen {
        Seen { address: self.address().to_owned(), at: self.connected }
    }

    /// Removes the socket of a process that is not used any more, if it has ended. One that
    /// somebody else looks after may well live on, so it is not waited for.
    pub(crate) async fn remove_socket(&self) {
        if !self.is_unused() {
            return;
        }
        if self.origin.is_ours() {
            socket_file::remove_of_ended(self.address()).await;
        } else {
            socket_file::remove_of_dead(self.address()).await;
        }
    }
}
