//! Counts descriptors and threads. Other tests of this binary open some too, so the counting test
//! runs alone, in a process that the visible test starts.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::runtime::Builder;

use super::{
    super::ProcessIo,
    client::{Client, ThreadSpawn, process_end, soon, until},
    terminal::attach_raw,
};

const COUNTING: &str = "io::tests::leaks::counts_come_back";

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

fn counts() -> (usize, usize) {
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

#[test]
fn nothing_leaks_over_hundreds_of_processes() {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", COUNTING, "--ignored", "--nocapture", "--test-threads=1"];
    let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    // What it said counts: its status may have gone to another test's reaper.
    let _ = child.wait();
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "must be alone in its process; another test starts it so"]
fn counts_come_back() {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_millis(1))
        .build()
        .unwrap();
    runtime.block_on(async {
        let kinds: [(_, _, fn() -> _); 6] = [
            ("fifos", 200, Client::with_fifos),
            ("terminal", 200, terminal),
            ("file", 200, file),
            ("logger", 20, || logger("exec 5>&-; cat <&3 & cat <&4 & wait", "binary")),
            ("missing stream", 200, missing),
            ("broken logger", 20, || logger("exec sleep 1000 5>&-", "binary-v2")),
        ];
        let threads = counts().1;
        // Once for what is set up once, such as the signal socket of the runtime.
        round(&logger("exec 5>&-", "binary"), 0).await;
        until("the first logger is gone", || counts().1 == threads).await;
        let base = counts();
        for (name, rounds, make) in kinds {
            for number in 0..rounds {
                round(&make(), number).await;
            }
            until(&format!("{name} come back from {:?} to {base:?}", counts()), || {
                counts() == base
            })
            .await;
        }
    });
}

/// One process, ended in one of several ways.
async fn round(client: &Client, number: usize) {
    let Ok((io, child)) = soon(ProcessIo::open(&client.request(&ThreadSpawn))).await else {
        return;
    };
    match (number % 4, client.terminal) {
        // Never attached, closed or merely dropped.
        (0, _) => {}
        (1, _) => return,
        (_, true) => {
            let mut process = attach_raw(&io, &child).await;
            process.write_all(b"output").unwrap();
        }
        (_, false) => {
            io.attach().await.unwrap();
            process_end(child.stdout).write_all(b"output").unwrap();
        }
    }
    if number % 4 == 2 {
        io.close_stdin();
        io.exited();
        io.drain(Duration::from_millis(20)).await;
    }
    soon(io.close()).await;
}

fn terminal() -> Client {
    let mut client = Client::with_fifos();
    client.terminal = true;
    client
}

fn file() -> Client {
    let mut client = Client::new();
    client.stdout = format!("file://{}", client.path("a/log").display());
    client.stderr = client.stdout.clone();
    client
}

fn missing() -> Client {
    let client = Client::with_fifos();
    fs::remove_file(&client.stderr).unwrap();
    client
}

fn logger(script: &str, scheme: &str) -> Client {
    let mut client = Client::with_fifos();
    let path = client.path("logger");
    fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    client.stdout = format!("{scheme}://{}", path.display());
    client
}
