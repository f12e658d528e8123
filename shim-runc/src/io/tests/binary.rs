use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use runtime_proto::errdefs::Code;

use super::{
    super::{ChildEnd, ProcessIo, binary::Logger, uri::Target},
    client::{Client, ThreadSpawn, Witness, pattern, process_end, soon, until, write_apart},
};

const LONG: Duration = Duration::from_secs(600);

/// A client whose logger is this shell script. The logger has no PATH.
fn client(scheme: &str, script: &str) -> Client {
    let mut client = Client::new();
    let path = client.path("logger");
    fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\ncd {}\n{script}", dir(&client)))
        .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    client.stdout = format!("{scheme}://{}", path.display());
    client
}

fn dir(client: &Client) -> &str {
    client.directory.path().to_str().unwrap()
}

/// Logs both streams and says in between that it is ready.
const FAITHFUL: &str = "cat <&3 >out & cat <&4 >err & echo $$ >pid; printf x >&5; exec 5>&-; wait";

fn pid_of(client: &Client) -> Pid {
    let text = fs::read_to_string(client.path("pid")).unwrap();
    Pid::from_raw(text.trim().parse().unwrap())
}

fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}

#[tokio::test]
async fn a_logger_gets_every_byte_of_both_streams() {
    for scheme in ["binary", "binary-v2"] {
        let client = client(scheme, FAITHFUL);
        let (io, child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
        io.attach().await.unwrap();
        let (out, err) = (pattern(12, 4 << 20), pattern(13, 4 << 20));
        let writers = [
            write_apart(process_end(child.stdout), out.clone()),
            write_apart(process_end(child.stderr), err.clone()),
        ];
        assert!(io.drain(LONG).await);
        for writer in writers {
            writer.join().unwrap().unwrap();
        }
        let pid = pid_of(&client);
        io.close().await;
        assert!(read(&client.path("out")) == out);
        assert!(read(&client.path("err")) == err);
        assert!(!is_alive(pid));
    }
}

#[tokio::test]
async fn a_logger_gets_its_arguments_two_variables_and_three_descriptors() {
    let mut client = client(
        "binary",
        r#"printf '%s|' "$@" >args; tr '\0' '\n' </proc/$$/environ >env
        ls -l /proc/$$/fd >fds; exec 5>&-; cat <&3"#,
    );
    client.stdout.push_str("?b=2&a=&c+d=%26");
    let (io, _child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    assert_eq!(read(&client.path("args")), b"b|2|a||c d|&|");
    assert_eq!(read(&client.path("env")), b"CONTAINER_ID=box\nCONTAINER_NAMESPACE=tests\n");
    let fds = String::from_utf8(read(&client.path("fds"))).unwrap();
    for number in 3..=5 {
        assert!(fds.contains(&format!(" {number} -> pipe:")), "{fds}");
    }
    // 10 and 255 are where shells keep their script.
    let others = |line: &&str| {
        let number = line.split(" -> ").next().and_then(|left| left.rsplit(' ').next());
        number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|n| n > 5 && n < 10)
    };
    assert_eq!(fds.lines().find(others), None, "nothing else is inherited");
    io.close().await;
}

#[tokio::test]
async fn a_plain_logger_is_ready_when_it_closes_the_pipe_a_strict_one_must_say_so() {
    let silent = "exec 5>&-; cat <&3";
    let lenient = client("binary", silent);
    let (io, _child) = soon(ProcessIo::open(&lenient.request(&ThreadSpawn))).await.unwrap();
    io.close().await;
    let strict = client("binary-v2", silent);
    let error = soon(ProcessIo::open(&strict.request(&ThreadSpawn))).await.unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    assert!(error.to_string().contains("logger"), "{error}");
}

#[tokio::test]
async fn a_strict_logger_that_fails_is_gone() {
    let client = client("binary-v2", "echo $$ >pid; exec 5>&-; exec sleep 1000");
    soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap_err();
    let pid = pid_of(&client);
    until("the logger is gone", || !is_alive(pid)).await;
}

#[tokio::test]
async fn a_logger_that_cannot_run_is_the_requests_fault() {
    let mut client = Client::new();
    client.stdout = "binary:///nowhere/logger".to_owned();
    let error = ProcessIo::open(&client.request(&ThreadSpawn)).await.unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    assert!(error.to_string().contains("/nowhere/logger"), "{error}");
    let file = client.path("no-program");
    fs::write(&file, "data").unwrap();
    client.stdout = format!("binary://{}", file.display());
    let error = ProcessIo::open(&client.request(&ThreadSpawn)).await.unwrap_err();
    assert_eq!(error.kind(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_logger_that_dies_takes_no_process_with_it_and_is_reported_once() {
    let (witness, _guard) = Witness::watch();
    let client = client("binary", "echo $$ >pid; exec 5>&-; exec sleep 1000");
    let (io, child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    io.attach().await.unwrap();
    let (mut out, err) = (process_end(child.stdout), process_end(child.stderr));
    out.write_all(b"unread").unwrap();
    kill(pid_of(&client), Signal::SIGKILL).unwrap();
    let writers = [write_apart(out, pattern(14, 1 << 20)), write_apart(err, pattern(15, 1 << 20))];
    assert!(soon(io.drain(LONG)).await);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    assert_eq!(witness.warnings(), 1);
    io.close().await;
}

#[tokio::test]
async fn a_logger_that_ends_with_its_streams_is_no_news() {
    let (witness, _guard) = Witness::watch();
    let client = client("binary", FAITHFUL);
    let (io, child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    io.attach().await.unwrap();
    drop(child);
    let pid = pid_of(&client);
    until("the logger is gone", || !is_alive(pid)).await;
    io.close().await;
    assert_eq!(witness.warnings(), 0);
}

#[tokio::test]
async fn an_idle_logger_is_asked_to_end() {
    let client = client(
        "binary",
        "echo $$ >pid; trap 'echo asked >term; exit' TERM; exec 5>&-
        while :; do sleep 0.05; done",
    );
    let (io, _child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    io.attach().await.unwrap();
    soon(io.close()).await;
    assert_eq!(read(&client.path("term")), b"asked\n");
    assert!(!is_alive(pid_of(&client)));
}

#[tokio::test]
async fn a_stubborn_logger_is_killed() {
    let client = client("binary", "trap '' TERM; echo $$ >pid; exec 5>&-; exec sleep 1000");
    let Target::Binary(uri) = Target::parse(&client.stdout).unwrap() else { panic!() };
    let owner = client.request(&ThreadSpawn).owner;
    let started = soon(Logger::start(&ThreadSpawn, &uri, owner, "box", "tests")).await.unwrap();
    let pid = pid_of(&client);
    soon(started.logger.stop(Duration::from_millis(50))).await;
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn a_logger_dropped_without_a_word_is_killed() {
    let client = client("binary", FAITHFUL);
    let (io, child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    let pid = pid_of(&client);
    drop((io, child));
    until("the logger is gone", || !is_alive(pid)).await;
}

#[tokio::test]
async fn a_terminal_may_have_a_logger() {
    let mut client = client("binary", FAITHFUL);
    client.terminal = true;
    let (io, child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    let bytes = pattern(16, 200_000);
    let mut process = super::terminal::attach_raw(&io, &child).await;
    let output = bytes.clone();
    super::client::apart(move || process.write_all(&output).unwrap()).await;
    io.exited();
    assert!(soon(io.drain(LONG)).await);
    soon(io.close()).await;
    assert!(read(&client.path("out")) == bytes);
    assert!(read(&client.path("err")).is_empty());
}

#[tokio::test]
async fn stderr_may_have_a_logger_alone() {
    let mut client = client("binary", FAITHFUL);
    client.stderr = std::mem::take(&mut client.stdout);
    let (io, child) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await.unwrap();
    io.attach().await.unwrap();
    assert!(matches!(child.stdout, ChildEnd::Null));
    process_end(child.stderr).write_all(b"oops").unwrap();
    assert!(soon(io.drain(LONG)).await);
    io.close().await;
    assert_eq!(read(&client.path("err")), b"oops");
}
