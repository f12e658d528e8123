//! What passes through the task manager as a daemon, beside the same calls to the containerd behind it: small calls one by
//! one and many at a time, and content in both directions.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};
use ttrpc::Code;

use super::burst::together;
use super::figure::{Case, quantile};
use super::ground::Bench;
use super::node::{DAEMON, Daemon, Node};
use super::records::call;
use super::turns::alternate;
use super::usage::processor_time;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::grpc::{Grpc, NAMESPACE, field, prefixed};

/// The floor: a connection to containerd itself.
const DIRECT: &str = "direct connection";

/// Small calls under way at the same time.
const AT_A_TIME: usize = 16;

/// A message of a stream that is written. Clients write 1 MiB at most.
const CHUNK: usize = 1 << 20;

/// The share of calls that are not slower than what is reported as the slow ones.
const SLOW: f64 = 0.99;

const VERSION: &str = "version.v1.Version/Version";

pub(super) async fn measure(bench: &Bench, fixture: &Fixture) -> Result<Vec<Case>> {
    let node = Node::start(fixture).await?;
    let daemon = Daemon::start(&node).await?;
    let clients = [node.client().await?, daemon.client().await?];
    let blob = Blob::write(&node, fixture, bench.effort.streamed).await?;
    let namespace = fixture.namespace();
    let names = [DIRECT, DAEMON].map(str::to_owned);
    let small = bench.effort.rates * 3;
    let mut calls = alternate(bench, &names, small, async |who, _| {
        let Some(client) = clients.get(who) else { return Ok([0.0; 3]) };
        let [middle, slow] = latencies(client, namespace, bench.effort.passing).await?;
        let each = bench.effort.passing / AT_A_TIME + 1;
        let begin = Instant::now();
        let lane = |_| several(client, namespace, each);
        together((0..AT_A_TIME).map(lane).collect()).await?;
        Ok([middle, slow, (each * AT_A_TIME) as f64 / begin.elapsed().as_secs_f64()])
    })
    .await?;
    let pid = daemon.pid()?;
    let mut streams = alternate(bench, &names, bench.effort.streams, async |who, turn| {
        let Some(client) = clients.get(who) else { return Ok([0.0; 3]) };
        let before = processor_time(pid)?;
        let read = blob.read(client, namespace).await?;
        let written = blob.upload(client, namespace, &format!("{who}-{turn}")).await?;
        let spent = (processor_time(pid)? - before) / 1e6;
        let size = bench.effort.streamed as f64;
        let rate = |time: Duration| size / time.as_secs_f64();
        Ok([rate(read), rate(written), spent / (2.0 * size / 1024.0)])
    })
    .await?;
    drop(clients);
    daemon.end().await?;
    node.end().await?;
    let case = |id: &str, title: &str, unit, samples| Case::new(id, title, unit, DAEMON, samples);
    let spent = streams.take(&names, 2).into_iter().skip(1).collect();
    Ok(vec![
        case("pass.call", "a small call", "ms", calls.take(&names, 0)),
        case("pass.slow", "a small call, 99 of 100", "ms", calls.take(&names, 1)),
        case("pass.rate", "small calls, 16 at a time", "1/s", calls.take(&names, 2))
            .more_is_better(),
        case("pass.read", "content read", "MiB/s", streams.take(&names, 0)).more_is_better(),
        case("pass.write", "content written", "MiB/s", streams.take(&names, 1)).more_is_better(),
        case("pass.cpu", "processor time of the daemon for 1 GiB", "ms", spent),
    ])
}

async fn latencies(client: &Grpc, namespace: &str, count: usize) -> Result<[f64; 2]> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        call(client, VERSION, namespace, &[]).await?;
        all.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok([quantile(&all, 0.5), quantile(&all, SLOW)])
}

async fn several(client: &Grpc, namespace: &str, count: usize) -> Result {
    for _ in 0..count {
        call(client, VERSION, namespace, &[]).await?;
    }
    Ok(())
}

/// Content in containerd's store, and the messages that write it once more.
#[derive(Debug)]
struct Blob {
    digest: String,
    size: usize,
    chunks: usize,
}

impl Blob {
    /// Puts it there. It is all zeros: nobody on the way looks at it.
    async fn write(node: &Node<'_>, fixture: &Fixture, mib: usize) -> Result<Self> {
        let file = fixture.file("state/blob");
        let bytes = vec![0; mib * CHUNK];
        std::fs::write(&file, &bytes)?;
        let hash = Sha256::digest(&bytes).iter().fold(String::new(), |mut text, byte| {
            use std::fmt::Write;
            let _ = write!(text, "{byte:02x}");
            text
        });
        let digest = format!("sha256:{hash}");
        let mut ingest = node.containerd.ctr(&["content", "ingest", "--expected-digest", &digest]);
        ingest.arg("blob").stdin(std::fs::File::open(&file)?);
        let output = crate::deadline::ended(ingest).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(format!("content ingest: {said}")));
        }
        std::fs::remove_file(file)?;
        Ok(Self { digest, size: bytes.len(), chunks: mib })
    }

    /// Reads all of it.
    async fn read(&self, client: &Grpc, namespace: &str) -> Result<Duration> {
        let path = "/containerd.services.content.v1.Content/Read";
        let begin = Instant::now();
        let got = client.drained(path, namespace, &field(1, self.digest.as_bytes())).await?;
        if got < self.size {
            return Err(Failure::new(format!("{got} bytes of {} came", self.size)));
        }
        Ok(begin.elapsed())
    }

    /// Writes as much under another name, and gives that up in the end.
    async fn upload(&self, client: &Grpc, namespace: &str, name: &str) -> Result<Duration> {
        /// Field 1 of a message: write.
        const WRITE: [u8; 2] = [1 << 3, 1];
        let reference = field(2, name.as_bytes());
        let path = "/containerd.services.content.v1.Content/Write";
        let message = [&WRITE[..], &reference, &field(6, &vec![0; CHUNK])].concat();
        let first = prefixed(&message);
        let mut body = BytesMut::with_capacity(self.chunks * first.len());
        (0..self.chunks).for_each(|_| body.extend_from_slice(&first));
        let body: Bytes = body.freeze();
        let begin = Instant::now();
        let answer = client.call(path, &[(NAMESPACE, namespace)], body).await?;
        let took = begin.elapsed();
        if answer.code != Code::OK {
            return Err(Failure::new(format!("{path}: {:?}: {}", answer.code, answer.text)));
        }
        let abort = field(1, name.as_bytes());
        call(client, "content.v1.Content/Abort", namespace, &abort).await?;
        Ok(took)
    }
}
