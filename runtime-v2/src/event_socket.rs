//! The ttrpc socket to which shims forward their events, for embedders without a containerd.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use protobuf::Message;
use runtime_proto::{
    errdefs::Code,
    events::{self, Envelope, ForwardRequest},
    ttrpc::{Request, Status},
    types::Empty,
};
use tokio::{net::UnixListener, task::JoinHandle};

use crate::{
    error::{Error, Result},
    events::EventSink,
    hearing::Hearing,
    id::Namespace,
    task_manager::TaskManager,
    ttrpc::{Handler, serve},
};

/// A socket being served. Dropping it stops that and removes the socket.
#[derive(Debug)]
pub struct EventSocket {
    path: PathBuf,
    serving: JoinHandle<io::Result<()>>,
}

impl EventSocket {
    /// Serves at `path`: every event goes to `sink`, and the manager learns from it.
    ///
    /// # Errors
    /// When the socket cannot be bound. One that a dead process has left is replaced.
    pub fn serve(path: &Path, manager: TaskManager, sink: Arc<dyn EventSink>) -> Result<Self> {
        let failed = |error| Error::io(format!("listen at {}", path.display()), error);
        if std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Shims know no other way: what was not told to an earlier manager is told to this one.
        manager.hears(Hearing::Everything);
        let handler = Arc::new(Forward { manager, sink });
        Ok(Self { path: path.to_path_buf(), serving: tokio::spawn(serve(listener, handler)) })
    }
}

impl Drop for EventSocket {
    fn drop(&mut self) {
        self.serving.abort();
        let _ = fs::remove_file(&self.path);
    }
}

struct Forward {
    manager: TaskManager,
    sink: Arc<dyn EventSink>,
}

#[async_trait]
impl Handler for Forward {
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status> {
        if request.service != events::SERVICE || request.method != "Forward" {
            let text = format!("{}/{}", request.service, request.method);
            return Err(Code::Unimplemented.status(&text));
        }
        let forwarded = ForwardRequest::parse_from_bytes(&request.payload)
            .map_err(|error| Code::InvalidArgument.status(&error.to_string()))?;
        let envelope = forwarded.envelope.into_option().unwrap_or_default();
        check(&envelope).map_err(|why| Code::InvalidArgument.status(why))?;
        let relayed = self.manager.relay(envelope, Arc::clone(&self.sink)).await;
        relayed.map_err(|error| error.kind().status(&error.to_string()))?;
        Ok(Empty::new().write_to_bytes().unwrap_or_default())
    }
}

/// The rules of containerd's own exchange (core/events/exchange/exchange.go).
fn check(envelope: &Envelope) -> Result<(), &'static str> {
    if Namespace::new(envelope.namespace.as_str()).is_err() {
        return Err("event without a valid namespace");
    }
    let topic = envelope.topic.strip_prefix('/').filter(|topic| !topic.is_empty());
    if !topic.is_some_and(|topic| topic.split('/').all(|word| Namespace::new(word).is_ok())) {
        return Err("event without a valid topic");
    }
    match envelope.timestamp.as_ref() {
        Some(at) if at.seconds != 0 || at.nanos != 0 => Ok(()),
        _ => Err("event without a timestamp"),
    }
}

#[cfg(test)]
mod tests {
    use runtime_proto::{events::TaskOOM, topics::Event};

    use super::*;

    #[test]
    fn only_whole_envelopes_pass() {
        let namespace = Namespace::new("ns").unwrap();
        let good = crate::events::envelope(&namespace, &TaskOOM::new()).unwrap();
        assert_eq!(good.topic, TaskOOM::TOPIC);
        assert_eq!(check(&good), Ok(()));
        let broken: [fn(&mut Envelope); 5] = [
            |envelope| envelope.namespace.clear(),
            |envelope| envelope.topic = "tasks/oom".into(),
            |envelope| envelope.topic = "/tasks//oom".into(),
            |envelope| envelope.topic = "/".into(),
            |envelope| envelope.timestamp = None.into(),
        ];
        for damage in broken {
            let mut envelope = good.clone();
            damage(&mut envelope);
            assert!(check(&envelope).is_err());
        }
    }
}
