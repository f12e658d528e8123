//! The end of the way of events: counts them and looks at nothing, so that it takes little of the time that is measured.

use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use ttrpc::proto::{Response, Status};

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;

/// Stands in for containerd at a fixture's events address.
#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    count: watch::Receiver<usize>,
    /// Ends with the sink.
    _serving: JoinSet<()>,
}

impl Sink {
    /// Listens where the shims of this fixture publish.
    pub(super) fn new(fixture: &Fixture) -> Result<Self> {
        Self::at(fixture.events_address())
    }

    /// Listens elsewhere, in the place of a containerd that has ended and left its socket there.
    pub(super) fn at(path: PathBuf) -> Result<Self> {
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).context(path.display())?;
        let (sender, count) = watch::channel(0);
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, sender));
        Ok(Self { path, count, _serving: serving })
    }

    /// How many events have come.
    pub(super) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Returns when as many have come.
    pub(super) async fn reached(&self, wanted: usize) -> Result {
        let mut count = self.count.clone();
        let reached = tokio::time::timeout(HANG, count.wait_for(|count| *count >= wanted)).await;
        let failed = || Failure::new(format!("{} of {wanted} events came", self.count()));
        reached.map_err(|_| failed())?.map(drop).map_err(|_| failed())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(Path::new(&self.path));
    }
}

async fn accept(listener: UnixListener, count: watch::Sender<usize>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let serving = serve(stream, count.clone());
        // A connection that breaks is the shim that ends.
        connections.spawn(async { drop(serving.await) });
    }
}

/// Answers every call on a connection, until it ends.
async fn serve(stream: UnixStream, count: watch::Sender<usize>) -> std::io::Result<()> {
    /// Message type 2, a response, and no flags.
    const RESPONSE: u16 = 0x0200;
    let mut response = Response::new();
    response.status = Some(Status::new()).into();
    let payload = response.write_to_bytes().map_err(std::io::Error::other)?;
    let length = u32::try_from(payload.len()).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(stream);
    let mut request = Vec::new();
    loop {
        // A frame: length and stream id in network order, type, flags; then the payload.
        let size = stream.read_u32().await?;
        let id = stream.read_u32().await?;
        stream.read_u16().await?;
        request.resize(size as usize, 0);
        stream.read_exact(&mut request).await?;
        count.send_modify(|count| *count += 1);
        let mut frame = Vec::with_capacity(payload.len() + 10);
        frame.extend(length.to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend(RESPONSE.to_be_bytes());
        frame.extend(&payload);
        stream.write_all(&frame).await?;
    }
}
