//! The ttrpc layer: calls that are too large, unknown, or come from someone else.

use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::scenario::{scenario, skip};
use integration::spec::{self, Spec};
use integration::stdio::Stdio;
use integration::{deadline, ensure_eq, paths};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];

#[test]
fn unknown_services_and_methods_are_unimplemented() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let tasks = &container.shim.tasks;
        let empty = containerd_shim_protos::api::Empty::new();
        let strange = tasks.speaking("containerd.task.v9.Task");
        for (client, method) in [(tasks, "NoSuchMethod"), (&strange, "State")] {
            let answer = client
                .call::<containerd_shim_protos::api::Empty>(method, &empty, deadline::HANG)
                .await;
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
