//! Streams and calls through the daemon while containerd is killed, stopped, or has more to tell than a client reads.

use std::process::Stdio;

use integration::daemon::{Events, in_front_of};
use integration::deadline::{self, HANG};
use integration::failure::{Failure, Result};
use integration::grpc::{Calls, Grpc, NAMESPACE, field, prefixed};
use integration::{ensure, ensure_eq};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use ttrpc::Code;

const TASKS: &str = "/containerd.services.tasks.v1.Tasks";
const PUBLISH: &str = "/containerd.services.events.v1.Events/Publish";

fn send(pid: Option<u32>, signal: Signal) -> Result {
    let pid = pid.ok_or_else(|| Failure::new("it has ended"))?;
    Ok(kill(Pid::from_raw(pid.try_into()?), signal)?)
}

async fn ends(mut child: Child, what: &str) -> Result<bool> {
    let ended = tokio::time::timeout(HANG, child.wait()).await;
    Ok(ended.map_err(|_| Failure::new(format!("{what} hangs")))??.success())
}

/// More events than HTTP/2 libraries care to keep for one who does not read them: the reader is waited for.
#[test]
fn a_subscriber_that_reads_late_gets_every_event() -> Result {
    const EVENTS: usize = 19_000;
    in_front_of("2", async |fixture, containerd, daemon| {
        let events = Events::follow(daemon).await?;
        send(events.pid(), Signal::SIGSTOP)?;
        let topic = "/late/reader";
        // The smallest event that ctr understands.
        let any = [field(1, b"containerd.events.TaskPaused"), field(2, &field(1, b"x"))].concat();
        let message = [field(1, topic.as_bytes()), field(2, &any)].concat();
        let publisher = Grpc::connect(&containerd.address()).await?;
        let published = Calls::begin(publisher, EVENTS, PUBLISH, fixture.namespace(), &message);
        for answer in published.all().await? {
            ensure_eq!(answer.code, Code::OK, "publish: {}", answer.text);
        }
        // Others are served meanwhile.
        daemon.must(&["images", "ls"]).await?;
        send(events.pid(), Signal::SIGCONT)?;
        let seen = || events.lines_with(topic).len();
        let all = deadline::until("all events", HANG, || seen() >= EVENTS).await;
        all.map_err(|failure| failure.context(format!("{} of {EVENTS} came", seen())))?;
        ensure_eq!(seen(), EVENTS, "events");
        events.stop().await
    })
}

#[test]
fn streams_end_with_the_containerd_behind_and_new_ones_work_with_the_next() -> Result {
    in_front_of("2", async |_, containerd, daemon| {
        daemon.must(&["images", "ls"]).await?;
        let before = daemon.descriptors();
        let mut ingest = daemon.ctr(&["content", "ingest", "cut-off"]);
        let mut ingest = ingest.stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut blob = ingest.stdin.take().ok_or_else(|| Failure::new("no pipe"))?;
        // More than fits into windows on the way, so that some of it has arrived.
        blob.write_all(&vec![7; 8 << 20]).await?;
        let events = daemon.ctr(&["events"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        containerd.end(Signal::SIGKILL).await?;
        drop(blob);
        ensure!(!ends(ingest, "a write").await?, "a write without containerd succeeds");
        ensure!(!ends(events, "a subscription").await?, "a subscription ends well");
        containerd.start_again().await?;
        daemon.must(&["images", "ls"]).await?;
        let mut ingest = daemon.ctr(&["content", "ingest", "whole"]);
        let mut ingest = ingest.stdin(Stdio::piped()).spawn()?;
        let mut blob = ingest.stdin.take().ok_or_else(|| Failure::new("no pipe"))?;
        blob.write_all(&vec![8; 8 << 20]).await?;
        drop(blob);
        ensure!(ends(ingest, "a write").await?, "a write fails");
        daemon.settles_to(before).await
    })
}

#[test]
fn while_containerd_stands_still_tasks_are_served_and_the_rest_waits() -> Result {
    in_front_of("2", async |fixture, containerd, daemon| {
        let id = daemon.id("served");
        daemon.run_detached(&id).await?;
        send(containerd.pid(), Signal::SIGSTOP)?;
        let grpc = Grpc::connect(&daemon.address()).await?;
        let message = field(1, id.as_bytes());
        let namespace = fixture.namespace();
        for method in ["Get", "List", "ListPids", "Metrics", "Pause", "Resume"] {
            let answer = grpc.unary(&format!("{TASKS}/{method}"), namespace, &message).await?;
            ensure_eq!(answer.code, Code::OK, "{method}: {}", answer.text);
        }
        // What needs a record waits no longer than its caller.
        let headers = [(NAMESPACE, namespace), ("grpc-timeout", "300m")];
        let ghost = prefixed(&field(1, b"ghost"));
        let late = grpc.call(&format!("{TASKS}/Create"), &headers, ghost).await?;
        ensure_eq!(late.code, Code::DEADLINE_EXCEEDED, "create: {}", late.text);
        let images = daemon.ctr(&["images", "ls"]).stdout(Stdio::null()).spawn()?;
        send(containerd.pid(), Signal::SIGCONT)?;
        ensure!(ends(images, "a call").await?, "a call that had to wait fails");
        daemon.remove(&id).await
    })
}
