//! Clients of the daemon that do what no proper client does: they are refused as containerd refuses them, the others are
//! served, and nothing stays.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use bytes::Bytes;
use integration::daemon::in_front_of;
use integration::failure::Result;
use integration::grpc::{Calls, Grpc, NAMESPACE, field, prefixed};
use integration::{deadline, ensure, ensure_eq, image};
use tokio::process::Command;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const TASKS: &str = "/containerd.services.tasks.v1.Tasks";

/// Bytes of a client that is no client, another for each number.
fn noise(number: u32) -> Vec<u8> {
    let bytes = (0..512_u32).map(|n| (n.wrapping_mul(2_654_435_761 + number) >> 24) as u8);
    let bytes: Vec<u8> = bytes.collect();
    match number % 6 {
        0 => Vec::new(),
        1 => bytes,
        2 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        3 => PREFACE.to_vec(),
        4 => [PREFACE, &bytes].concat(),
        _ => [PREFACE, SETTINGS, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &bytes].concat(),
    }
}

#[test]
fn ten_thousand_connections_in_turn_leave_no_descriptor() -> Result {
    in_front_of("2", async |fixture, _, daemon| {
        daemon.must(&["tasks", "ls"]).await?;
        let before = daemon.descriptors();
        for number in 0..10_000 {
            if number % 100 == 0 {
                let grpc = Grpc::connect(&daemon.address()).await?;
                let list = grpc.unary(&format!("{TASKS}/List"), fixture.namespace(), &[]).await?;
                ensure_eq!(list.code, ttrpc::Code::OK, "list, after {number}: {}", list.text);
                continue;
            }
            let mut stream = UnixStream::connect(daemon.address())?;
            // The daemon may have hung up already.
            let _ = stream.write_all(&noise(number));
        }
        daemon.must(&["images", "ls"]).await?;
        daemon.settles_to(before).await
    })
}

#[test]
fn connections_that_are_half_open_hold_up_nobody() -> Result {
    in_front_of("2", async |_, _, daemon| {
        daemon.must(&["tasks", "ls"]).await?;
        let before = daemon.descriptors();
        let mut held = Vec::new();
        for number in 0..600 {
            let mut stream = UnixStream::connect(daemon.address())?;
            let _ = stream.write_all(&noise(number));
            if number % 2 == 0 {
                let _ = stream.shutdown(Shutdown::Write);
            }
            held.push(stream);
        }
        daemon.must(&["tasks", "ls"]).await?;
        daemon.must(&["images", "ls"]).await?;
        drop(held);
        daemon.settles_to(before).await
    })
}

/// With all descriptors taken by one client the others wait, and once it has left all is as before.
#[test]
fn when_descriptors_have_run_out_they_come_back() -> Result {
    const LIMIT: usize = 100;
    in_front_of("2", async |_, _, daemon| {
        let id = daemon.id("through");
        let run = ["run", "--rm", "--null-io", image::NAME, &id, "true"];
        daemon.must(&run).await?;
        let before = daemon.descriptors();
        let mut limit = Command::new("prlimit");
        limit.arg(format!("--pid={}", daemon.pid().unwrap_or_default()));
        limit.arg(format!("--nofile={LIMIT}:"));
        let limited = deadline::ended(limit).await?;
        ensure!(limited.status.success(), "{}", String::from_utf8_lossy(&limited.stderr));
        let held: Vec<_> = (0..LIMIT * 2)
            .map(|_| UnixStream::connect(daemon.address()))
            .collect::<std::io::Result<_>>()?;
        let full = || daemon.descriptors() >= LIMIT;
        deadline::until("the limit", deadline::HANG, full).await?;
        let waits = daemon.ctr(&run).spawn()?;
        drop(held);
        let waited = tokio::time::timeout(deadline::HANG, waits.wait_with_output()).await;
        ensure!(waited.is_ok_and(|output| output.is_ok_and(|o| o.status.success())), "it fails");
        daemon.must(&run).await?;
        daemon.settles_to(before).await
    })
}

/// A call that no proper client makes. One that ends in the middle of its message is not among them: nobody is left to
/// read the code.
struct Abuse {
    what: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

fn abuses(namespace: &str) -> Vec<Abuse> {
    let named = || vec![(NAMESPACE, namespace.to_owned())];
    let of_id = |id: &[u8]| prefixed(&field(1, id));
    let get = |what, headers, body| Abuse { what, path: format!("{TASKS}/Get"), headers, body };
    let at = |what, path: &str| Abuse {
        what,
        path: path.to_owned(),
        headers: named(),
        body: of_id(b"x"),
    };
    let with = |name, value: &str| [named(), vec![(name, value.to_owned())]].concat();
    vec![
        get("no namespace", Vec::new(), of_id(b"x")),
        get("an empty namespace", vec![(NAMESPACE, String::new())], of_id(b"x")),
        get("a namespace with a slash", vec![(NAMESPACE, "../x".to_owned())], of_id(b"x")),
        get("no id", named(), prefixed(&[])),
        get("an id with a slash", named(), of_id(b"../../x")),
        get("an id of 100 kB", named(), of_id(&[b'a'; 100_000])),
        get("an id that is no text", named(), of_id(&[0xff, 0xfe, 0xfd])),
        get("a message that is none", named(), prefixed(&[0xff; 64])),
        get("17 MiB", named(), of_id(&vec![b'a'; 17 << 20])),
        get(
            "more than 4 GiB, as it says",
            named(),
            Bytes::from_static(&[0, 255, 255, 255, 255, 1]),
        ),
        get("a compressed message", with("grpc-encoding", "zip"), {
            [&[1][..], &of_id(b"x")[1..]].concat().into()
        }),
        get("a header of 100 kB", with("x-large", &"a".repeat(100_000)), of_id(b"x")),
        get("no time", with("grpc-timeout", "0n"), of_id(b"x")),
        at("no such method", &format!("{TASKS}/Explode")),
        at("no such service", "/containerd.services.none.v1.None/Get"),
        at("no method", "/containerd.services.tasks.v1.Tasks"),
        at("no path", "/"),
    ]
}

async fn answer(socket: &Path, abuse: &Abuse) -> Result<String> {
    let grpc = Grpc::connect(socket).await?;
    let headers: Vec<_> = abuse.headers.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let answer = grpc.call(&abuse.path, &headers, abuse.body.clone()).await;
    Ok(match answer {
        Ok(answer) => format!("{:?}", answer.code),
        Err(failure) => format!("no answer: {failure}"),
    })
}

#[test]
fn abuse_is_refused_with_the_code_that_containerd_gives_it() -> Result {
    in_front_of("2", async |fixture, containerd, daemon| {
        let before = daemon.descriptors();
        let mut differ = Vec::new();
        for abuse in abuses(fixture.namespace()) {
            let theirs = answer(&containerd.address(), &abuse).await?;
            let ours = answer(&daemon.address(), &abuse).await?;
            if ours != theirs {
                differ.push(format!("{}: {ours}, and containerd {theirs}", abuse.what));
            }
            daemon.must(&["tasks", "ls"]).await?;
        }
        ensure!(differ.is_empty(), "{}", differ.join("\n"));
        daemon.settles_to(before).await
    })
}

#[test]
fn a_thousand_waits_are_all_answered_and_those_that_leave_are_forgotten() -> Result {
    const WAITS: usize = 1000;
    in_front_of("2", async |fixture, _, daemon| {
        let id = daemon.id("awaited");
        daemon.run_detached(&id).await?;
        let before = daemon.descriptors();
        let (path, message) = (format!("{TASKS}/Wait"), field(1, id.as_bytes()));
        let begin = async || {
            let grpc = Grpc::connect(&daemon.address()).await?;
            let namespace = fixture.namespace();
            // The connection serves before any of them waits.
            grpc.unary(&format!("{TASKS}/List"), namespace, &[]).await?;
            Result::Ok(Calls::begin(grpc, WAITS, &path, namespace, &message))
        };
        let left = begin().await?;
        let stay = begin().await?;
        daemon.must(&["tasks", "exec", "--exec-id", "e", &id, "true"]).await?;
        ensure_eq!(left.answered() + stay.answered(), 0, "waits that are answered too early");
        drop(left);
        daemon.must(&["tasks", "kill", "--signal", "SIGKILL", &id]).await?;
        let answers = stay.all().await?;
        let first = &answers[0];
        ensure_eq!(first.code, ttrpc::Code::OK, "code: {}", first.text);
        ensure!(answers.iter().all(|answer| answer == first), "answers differ");
        // exit_status, 128 + 9, in two bytes.
        ensure!(first.message.starts_with(&[8, 137, 1]), "no 137 in {:?}", first.message);
        daemon.remove(&id).await?;
        daemon.settles_to(before).await
    })
}
