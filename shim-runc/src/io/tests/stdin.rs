use std::{
    fs::{self, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
};

use tokio::task::spawn_blocking;

use super::{
    super::{ChildEnd, Owner, ProcessIo},
    client::{Client, NoSpawn, apart, open_writer, pattern, process_end, soon, until},
};

fn client() -> Client {
    let mut client = Client::new();
    client.stdin = client.fifo("stdin");
    client
}

#[tokio::test]
async fn leaving_is_no_end_and_closing_comes_after_all_bytes() {
    let client = client();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdin);
    let bytes = pattern(5, 1 << 20);
    let (path, half) = (client.stdin.clone(), bytes[..1 << 19].to_vec());
    let first = spawn_blocking(move || open_writer(&path).write_all(&half));
    let (process, early) = apart(move || {
        let mut early = vec![0; 1 << 19];
        process.read_exact(&mut early).unwrap();
        (process, early)
    })
    .await;
    soon(first).await.unwrap().unwrap();
    // The first client is gone. A second one comes, and this time it is the last.
    let (path, half) = (client.stdin.clone(), bytes[1 << 19..].to_vec());
    let second = spawn_blocking(move || open_writer(&path).write_all(&half));
    let rest = spawn_blocking(move || {
        let (mut process, mut rest) = (process, Vec::new());
        process.read_to_end(&mut rest).unwrap();
        rest
    });
    soon(second).await.unwrap().unwrap();
    io.close_stdin();
    io.close_stdin();
    let rest = soon(rest).await.unwrap();
    assert!([early, rest].concat() == bytes);
    io.close().await;
}

#[tokio::test]
async fn closing_before_the_start_still_delivers() {
    let client = client();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    let path = client.stdin.clone();
    apart(move || open_writer(&path).write_all(b"early")).await.unwrap();
    io.close_stdin();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdin);
    let text = apart(move || {
        let mut text = String::new();
        process.read_to_string(&mut text).unwrap();
        text
    })
    .await;
    assert_eq!(text, "early");
    io.close().await;
    io.close_stdin();
}

#[tokio::test]
async fn closing_what_is_not_there_does_nothing() {
    let client = Client::new();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    assert!(matches!(child.stdin, ChildEnd::Null));
    io.close_stdin();
    io.attach().await.unwrap();
    io.close_stdin();
    io.exited();
    io.close_stdin();
    io.close().await;
    io.close_stdin();
}

#[tokio::test]
async fn a_process_that_stops_reading_lets_its_client_know() {
    let client = client();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut writer =
        OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&client.stdin).unwrap();
    drop(child);
    until("the fifo has no reader", || match writer.write(b"x") {
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::BrokenPipe,
    })
    .await;
    io.close().await;
}

#[tokio::test]
async fn a_file_is_read_to_its_end() {
    let mut client = Client::new();
    let bytes = pattern(6, 300_000);
    fs::write(client.path("input"), &bytes).unwrap();
    client.stdin = client.path("input").to_str().unwrap().to_owned();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdin);
    let all = apart(move || {
        let mut all = Vec::new();
        process.read_to_end(&mut all).unwrap();
        all
    })
    .await;
    assert!(all == bytes);
    io.close().await;
}

#[tokio::test]
async fn pipes_belong_to_the_process() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let client = Client::with_fifos();
    let mut request = client.request(&NoSpawn);
    request.owner = Owner { uid: 1000, gid: 1001 };
    let (io, child) = ProcessIo::open(&request).await.unwrap();
    for end in [child.stdin, child.stdout, child.stderr] {
        let metadata = process_end(end).metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (1000, 1001));
    }
    io.close().await;
}
