use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    os::fd::AsFd as _,
    sync::Arc,
    time::Duration,
};

use nix::poll::PollFlags;
use runtime_proto::errdefs::Code;
use tokio::task::spawn_blocking;

use super::{
    super::{
        ChildEnd, ProcessIo,
        input::feed_terminal,
        lock,
        open::{Input, Streams},
        pipe::events_now,
    },
    client::{
        Client, NoSpawn, apart, open_reader, pattern, process_end, read_all, soon, until,
        write_apart,
    },
};

/// For waits that must not end by themselves.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn sixty_four_mib_arrive_exactly() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    let (out, err) = (pattern(1, 32 << 20), pattern(2, 32 << 20));
    let writers = [
        write_apart(process_end(child.stdout), out.clone()),
        write_apart(process_end(child.stderr), err.clone()),
    ];
    let (stdout, stderr) = (client.stdout.clone(), client.stderr.clone());
    let read_out = spawn_blocking(move || read_all(&stdout));
    let read_err = spawn_blocking(move || read_all(&stderr));
    io.attach().await.unwrap();
    assert!(soon(read_out).await.unwrap() == out, "stdout differs");
    assert!(soon(read_err).await.unwrap() == err, "stderr differs");
    assert!(io.drain(LONG).await);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    io.close().await;
}

#[tokio::test]
async fn a_reader_that_comes_after_the_end_gets_everything_and_the_end() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let bytes = pattern(3, 100_000);
    let writer = write_apart(process_end(child.stdout), bytes.clone());
    drop((child.stderr, child.stdin));
    apart(move || writer.join().unwrap().unwrap()).await;
    io.exited();
    assert!(!io.drain(Duration::ZERO).await, "nobody has read anything yet");
    let path = client.stdout.clone();
    assert!(apart(move || read_all(&path)).await == bytes);
    assert!(io.drain(LONG).await);
    io.close().await;
}

#[tokio::test]
async fn what_a_client_that_left_has_not_read_holds_nothing_up() {
    let client = Client::with_fifos();
    let readers = [open_reader(&client.stdout), open_reader(&client.stderr)];
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    drop(readers);
    let bytes = pattern(7, 100);
    let writer = write_apart(process_end(child.stdout), bytes.clone());
    drop((child.stderr, child.stdin));
    apart(move || writer.join().unwrap().unwrap()).await;
    io.exited();
    assert!(io.drain(LONG).await);
    // It is kept all the same, until everything is closed.
    let path = client.stdout.clone();
    assert!(apart(move || read_all(&path)).await == bytes);
    io.close().await;
}

#[tokio::test]
async fn a_stalled_reader_stalls_the_process_and_loses_nothing() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let bytes = pattern(4, 1 << 20);
    let mut reader = open_reader(&client.stdout);
    let end = process_end(child.stdout);
    let probe = end.try_clone().unwrap();
    let writer = write_apart(end, bytes.clone());
    until("both pipes are full", || {
        !events_now(&probe, PollFlags::POLLOUT).contains(PollFlags::POLLOUT)
    })
    .await;
    assert!(!writer.is_finished());
    drop(probe);
    let mut all = Vec::new();
    until("the end of the stream", || {
        let mut piece = [0; 999];
        match reader.read(&mut piece) {
            Ok(0) => return true,
            Ok(filled) => all.extend_from_slice(&piece[..filled]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        false
    })
    .await;
    assert!(all == bytes);
    writer.join().unwrap().unwrap();
    io.close().await;
}

#[tokio::test]
async fn readers_come_and_go_and_the_process_notices_nothing() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdout);
    for round in 0..20 {
        let path = client.stdout.clone();
        let reader = apart(move || File::open(path).unwrap()).await;
        let line = format!("line {round}\n");
        process.write_all(line.as_bytes()).unwrap();
        let heard = apart(move || {
            let mut heard = String::new();
            BufReader::new(reader).read_line(&mut heard).unwrap();
            heard
        })
        .await;
        assert_eq!(heard, line);
        process.write_all(b"").unwrap();
    }
    // Said while nobody listens, heard by who comes next.
    process.write_all(b"into the void\n").unwrap();
    drop(process);
    let path = client.stdout.clone();
    assert_eq!(apart(move || read_all(&path)).await, b"into the void\n");
    io.close().await;
}

#[tokio::test]
async fn many_short_lines_fit_into_an_unread_fifo() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdout);
    let unread = open_reader(&client.stdout);
    for round in 0..500 {
        process.write_all(format!("{round:09}\n").as_bytes()).unwrap();
        until("the line left the process's pipe", || is_empty(&process)).await;
    }
    drop((process, unread));
    io.close().await;
}

/// Whether a writer's pipe is empty, asked by its own number.
fn is_empty(writer: &File) -> bool {
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let reader = open_reader(&path);
    !events_now(reader.as_fd(), PollFlags::POLLIN).contains(PollFlags::POLLIN)
}

#[tokio::test]
async fn opening_waits_for_no_peer_and_takes_no_thread() {
    let client = Client::with_fifos();
    let mut all = Vec::new();
    for _ in 0..64 {
        let (io, child) = soon(ProcessIo::open(&client.request(&NoSpawn))).await.unwrap();
        soon(io.attach()).await.unwrap();
        all.push((io, child));
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 3 * 64);
    for (io, child) in all {
        drop(child);
        assert!(io.drain(LONG).await, "nothing was written");
        io.close().await;
    }
}

#[tokio::test]
async fn one_path_for_both_streams_is_one_open_fifo() {
    let mut client = Client::new();
    client.stdout = client.fifo("both");
    client.stderr = client.path("./both").to_str().unwrap().to_owned();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let path = client.stdout.clone();
    let reader = spawn_blocking(move || read_all(&path));
    process_end(child.stdout).write_all(b"out\n").unwrap();
    let mut stderr = process_end(child.stderr);
    // stdout has ended by now or will soon; the reader must not take that for the end of both.
    tokio::task::yield_now().await;
    stderr.write_all(b"err\n").unwrap();
    drop(stderr);
    let mut lines: Vec<_> =
        String::from_utf8(soon(reader).await.unwrap()).unwrap().lines().map(String::from).collect();
    lines.sort();
    assert_eq!(lines, ["err", "out"]);
    io.close().await;
}

#[tokio::test]
async fn streams_may_be_left_out() {
    for given in ["stdin", "stdout", "stderr"] {
        let mut client = Client::new();
        let fifo = client.fifo(given);
        match given {
            "stdin" => client.stdin = fifo,
            "stdout" => client.stdout = fifo,
            _ => client.stderr = format!("fifo://{fifo}"),
        }
        let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
        io.attach().await.unwrap();
        let ends = [("stdin", child.stdin), ("stdout", child.stdout), ("stderr", child.stderr)];
        for (name, end) in ends {
            assert_eq!(matches!(end, ChildEnd::Fd(_)), name == given, "{name} of {given}");
        }
        assert!(io.drain(LONG).await);
        io.close().await;
    }
}

#[tokio::test]
async fn a_missing_path_is_the_requests_fault() {
    let mut client = Client::with_fifos();
    fs::remove_file(&client.stderr).unwrap();
    let error = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    assert!(error.to_string().contains(&client.stderr), "{error}");
    client.stderr.clear();
    client.stdin = "/dev/null/x".to_owned();
    let error = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
}

#[tokio::test]
async fn draining_waits_for_the_last_writer_up_to_its_limit() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    io.exited();
    assert!(!io.drain(Duration::from_millis(5)).await, "a child of the process may still write");
    drop(child);
    assert!(io.drain(LONG).await);
    io.close().await;
    io.close().await;
    assert!(io.drain(LONG).await);
}

#[tokio::test]
async fn closing_ends_readers_although_the_process_still_writes() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let path = client.stdout.clone();
    let mut reader = apart(move || File::open(path).unwrap()).await;
    let mut process = process_end(child.stdout);
    process.write_all(b"last words").unwrap();
    until("the bytes left the process's pipe", || is_empty(&process)).await;
    soon(io.close()).await;
    let heard = apart(move || {
        let mut heard = String::new();
        reader.read_to_string(&mut heard).unwrap();
        heard
    })
    .await;
    assert_eq!(heard, "last words");
    assert_eq!(process.write_all(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn dropping_without_closing_ends_everything() {
    let client = Client::with_fifos();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdout);
    drop(io);
    until("the pipe breaks", || process.write_all(b"x").is_err()).await;
}

/// The futures run on other people's tasks, and the idle ones are what a container costs.
#[tokio::test]
async fn futures_are_send_and_small() {
    fn send_size<T: Send>(future: &T) -> usize {
        size_of_val(future)
    }
    let client = Client::with_fifos();
    let (io, _child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    assert!(send_size(&io) <= 256);
    assert!(send_size(&io.attach()) <= 1024);
    assert!(send_size(&io.drain(LONG)) <= 1024);
    assert!(send_size(&io.close()) <= 1024);
    assert!(send_size(&ProcessIo::open(&client.request(&NoSpawn))) <= 2048);
    let opened = lock(&io.opened).take().unwrap();
    let Streams::Pipes(outputs) = opened.streams else { panic!("not a terminal") };
    for (stream, source, sink) in outputs {
        assert!(send_size(&io.carry(stream, source, sink)) <= 1024);
    }
    let Input { feed, pipe } = opened.input.unwrap();
    let label = io.label.stream("stdin");
    let master = Arc::new(pipe.unwrap());
    assert!(send_size(&feed_terminal(feed, master, label)) <= 1024);
}
