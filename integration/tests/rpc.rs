//! The ttrpc layer: calls that are too large, unknown, or come from someone else.

use std::time::Duration;

use containerd_shim_protos::api;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::leak::Usage;
use integration::scenario::{scenario, skip};
use integration::spec::{self, Spec};
use integration::stdio::Stdio;
use integration::task::{V2, create_request};
use integration::{deadline, ensure, ensure_eq, paths};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use ttrpc::Code;
use ttrpc::proto::Request;

const SLEEP: [&str; 2] = ["sleep", "1000"];

#[test]
fn unknown_services_and_methods_are_unimplemented() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let tasks = &container.shim.tasks;
        let empty = api::Empty::new();
        let strange = tasks.speaking("containerd.task.v9.Task");
        for (client, method) in [(tasks, "NoSuchMethod"), (&strange, "State")] {
            let answer = client.call::<api::Empty>(method, &empty, deadline::HANG).await;
            let code = answer.err().and_then(|error| error.code());
            ensure_eq!(code, Some(Code::UNIMPLEMENTED), "{method}");
        }
        container.retire().await
    })
}

#[test]
fn large_but_legal_request_is_served() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let mut process = spec::process(&["sh", "-c", "exit 0"]);
        // Below the kernel's limit of one argument and of all together, but far above one page of anything.
        let many: Vec<String> = (0..12).map(|n| format!("V{n}={}", "x".repeat(120_000))).collect();
        process["env"] =
            serde_json::json!(many.into_iter().chain(["PATH=/bin".into()]).collect::<Vec<_>>());
        tasks.exec(id, "e", &process, &Stdio::null()).await?;
        tasks.start(id, "e").await?;
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 0, "exit status");
        container.retire().await
    })
}

#[test]
fn oversized_request_fails_alone() -> Result {
    const BODY: u32 = 5 << 20;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        if paths::is_go_shim() {
            skip("Go's ttrpc answers it in its own way")?;
            return container.retire().await;
        }
        let socket = container.shim.started.socket();
        let mut stream = UnixStream::connect(socket).await?;
        let mut frame = Vec::new();
        frame.extend(BODY.to_be_bytes());
        frame.extend(1_u32.to_be_bytes());
        frame.extend([1, 0]);
        frame.resize(frame.len() + BODY as usize, 0);
        let exchange = async {
            stream.write_all(&frame).await?;
            let mut header = [0; 10];
            stream.read_exact(&mut header).await?;
            std::io::Result::Ok(header)
        };
        let header = tokio::time::timeout(deadline::HANG, exchange).await;
        let header = header.map_err(|_| Failure::new("no answer to an oversized call"))??;
        ensure_eq!(header.get(4..8), Some([0, 0, 0, 1].as_slice()), "stream of the answer");
        container.shim.tasks.state(container.id(), "").await?;
        container.retire().await
    })
}

#[test]
fn garbage_on_a_connection_ends_that_connection_only() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        for garbage in
            [&b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"GET / HTTP/1.1\r\n\r\n", b"\0"]
        {
            let mut stream = UnixStream::connect(container.shim.started.socket()).await?;
            stream.write_all(garbage).await?;
            drop(stream);
        }
        container.shim.tasks.state(container.id(), "").await?;
        container.retire().await
    })
}

#[test]
fn other_users_are_not_served() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let socket = container.shim.started.socket();
        // Even where the permissions of the file would let them in.
        let dir = fixture.file("open");
        std::fs::create_dir(&dir)?;
        let link = dir.join("sock");
        std::fs::hard_link(&socket, &link).or_else(|_| std::fs::rename(&socket, &link))?;
        for path in [fixture.dir(), dir.as_path(), link.as_path()] {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        }
        let stranger = fixture.file("open/stranger");
        std::fs::copy(paths::stand_in("stranger")?, &stranger)?;
        let mut command = tokio::process::Command::new(&stranger);
        let output = command.arg(&link).uid(65534).gid(65534).output().await?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure_eq!(said.trim(), "turned away", "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::set_permissions(&link, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        container.retire().await
    })
}

/// A frame with a request.
fn frame(stream: u32, service: &str, method: &str, payload: Vec<u8>) -> Result<Vec<u8>> {
    let mut request = Request::new();
    (request.service, request.method) = (service.to_owned(), method.to_owned());
    request.payload = payload;
    let request = request.write_to_bytes()?;
    let mut frame = Vec::with_capacity(10 + request.len());
    frame.extend(u32::try_from(request.len())?.to_be_bytes());
    frame.extend(stream.to_be_bytes());
    frame.extend([1, 0]);
    frame.extend(request);
    Ok(frame)
}

/// Sends the same call until the shim takes no more, or `limit` bytes. How many bytes it took.
async fn flood(
    stream: &mut UnixStream,
    method: &str,
    payload: &[u8],
    limit: usize,
) -> Result<usize> {
    /// A shim that has taken nothing for this long takes nothing.
    const STANDSTILL: Duration = Duration::from_secs(2);
    let (mut number, mut sent) = (1, 0);
    while sent < limit {
        let frame = frame(number, V2, method, payload.to_vec())?;
        match tokio::time::timeout(STANDSTILL, stream.write_all(&frame)).await {
            Ok(written) => written?,
            Err(_) => break,
        }
        number += 2;
        sent += frame.len();
    }
    Ok(sent)
}

#[test]
fn peer_that_asks_without_end_and_reads_nothing_costs_little_and_hinders_nobody() -> Result {
    const MIB: usize = 1 << 20;
    if paths::is_go_shim() {
        return skip("Go's ttrpc takes all that comes");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&SLEEP);
        let container =
            Container::run_with(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let before = Usage::of(container.shim.pid)?;
        // Each wants the runtime, which stands still for the first, and the others stand behind that one.
        let gate = Gate::new(fixture, "update");
        fake.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("update") }.succeeds()])?;
        let mut large = api::UpdateTaskRequest::new();
        large.id = id.to_owned();
        let mut resources = Any::new();
        resources.value = format!("{{\"unified\":{{\"x\":\"{}\"}}}}", "x".repeat(MIB)).into_bytes();
        large.resources = MessageField::some(resources);
        let (large, mut small) = (large.write_to_bytes()?, api::WaitRequest::new());
        small.id = id.to_owned();
        let small = small.write_to_bytes()?;
        let mut streams = Vec::new();
        for (method, payload, limit) in
            [("Update", &large, 200 * MIB), ("Wait", &small, 2 * MIB), ("State", &small, 20 * MIB)]
        {
            let mut stream = UnixStream::connect(container.shim.started.socket()).await?;
            let sent = flood(&mut stream, method, payload, limit).await?;
            ensure!(sent < limit || method == "Wait", "{method}: it took {sent} bytes");
            streams.push(stream);
            tasks.state(id, "").await?;
            let now = Usage::of(container.shim.pid)?;
            // The room of a connection, which holds a message and what was read of it.
            ensure!(
                now.rss < before.rss + 80 * 1024,
                "{method}: {} kB, then {} kB",
                before.rss,
                now.rss
            );
        }
        gate.reached().await?;
        drop(streams);
        gate.open()?;
        fake.obey(&[])?;
        container.retire().await
    })
}

#[test]
fn event_that_is_too_large_to_be_sent_holds_up_no_other() -> Result {
    /// What a message may have, and what that of a call has beside its payload.
    const MOST: usize = 4 << 20;
    const ENVELOPE: usize = 64;
    if paths::is_go_shim() {
        return skip("Go's shims drop an event after some attempts, whatever is wrong with it");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        // Of a restore, which costs nothing, the event says all that the call says, and more.
        let bundle = fixture.bundle("large", &Spec::new(&SLEEP))?;
        let mut create = create_request(&bundle, &Stdio::null());
        create.rootfs.clear();
        let rest = usize::try_from(create.compute_size())?;
        create.checkpoint = format!("/{}", "x".repeat(MOST - rest - ENVELOPE));
        let mut stream = UnixStream::connect(container.shim.started.socket()).await?;
        stream.write_all(&frame(1, V2, "Create", create.write_to_bytes()?)?).await?;
        let mut head = [0; 10];
        let answered = tokio::time::timeout(deadline::HANG, stream.read_exact(&mut head)).await;
        answered.map_err(|_| Failure::new("no answer to a large Create"))??;
        container.shim.tasks.state(&bundle.id, "").await?;
        container.shim.tasks.delete(&bundle.id, "").await?;
        container.shim.tasks.kill(container.id(), "", 9).await?;
        sink.wait_for_word(container.id(), "exit").await?;
        container.retire().await
    })
}
