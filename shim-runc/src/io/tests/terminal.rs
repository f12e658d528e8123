#![expect(unsafe_code, reason = "TIOCGWINSZ has no safe wrapper")]

use std::{
    fs::{self, File},
    io::{IoSlice, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    pty::{OpenptyResult, Winsize, openpty},
    sys::{
        socket::{ControlMessage, MsgFlags, sendmsg},
        termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr},
    },
};
use runtime_proto::errdefs::Code;
use tokio::task::spawn_blocking;

use super::{
    super::{ChildEnd, ChildStdio, ProcessIo, Size},
    client::{Client, NoSpawn, Witness, apart, open_writer, pattern, read_all, soon},
};

nix::ioctl_read_bad!(get_window_size, libc::TIOCGWINSZ, Winsize);

const LONG: Duration = Duration::from_secs(600);

/// A client of a terminal with the given streams.
fn client(streams: &[&str]) -> Client {
    let mut client = Client::new();
    client.terminal = true;
    for stream in streams {
        let fifo = client.fifo(stream);
        *match *stream {
            "stdin" => &mut client.stdin,
            "stdout" => &mut client.stdout,
            _ => &mut client.stderr,
        } = fifo;
    }
    client
}

/// Sends descriptors as an OCI runtime does.
fn send(socket: &Path, descriptors: &[&OwnedFd]) {
    let stream = UnixStream::connect(socket).unwrap();
    let raw: Vec<_> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[][..] } else { &rights[..] };
    let name = [IoSlice::new(b"/dev/pts/1")];
    sendmsg::<()>(stream.as_raw_fd(), &name, rights, MsgFlags::empty(), None).unwrap();
}

/// The process's end of a terminal that passes bytes as they are.
fn raw_pty() -> OpenptyResult {
    let pty = openpty(None, None).unwrap();
    let mut settings = tcgetattr(&pty.slave).unwrap();
    cfmakeraw(&mut settings);
    tcsetattr(&pty.slave, SetArg::TCSANOW, &settings).unwrap();
    pty
}

fn socket(child: &ChildStdio) -> PathBuf {
    child.console_socket.clone().unwrap()
}

/// A terminal on which everything went well up to and including `attach`.
async fn attached(client: &Client, pty: OpenptyResult) -> (ProcessIo, File) {
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    for end in [&child.stdin, &child.stdout, &child.stderr] {
        assert!(matches!(end, ChildEnd::Null));
    }
    let path = socket(&child);
    send(&path, &[&pty.master]);
    soon(io.attach()).await.unwrap();
    assert!(!path.parent().unwrap().exists(), "the console socket is gone with its directory");
    (io, pty.slave.into())
}

/// Plays the OCI runtime for an open terminal; the process's end of it.
pub(super) async fn attach_raw(io: &ProcessIo, child: &ChildStdio) -> File {
    let pty = raw_pty();
    send(&socket(child), &[&pty.master]);
    soon(io.attach()).await.unwrap();
    pty.slave.into()
}

#[tokio::test]
async fn all_output_arrives_although_the_process_is_gone() {
    let client = client(&["stdin", "stdout"]);
    let (io, mut process) = attached(&client, raw_pty()).await;
    let bytes = pattern(9, 3 << 20);
    let path = client.stdout.clone();
    let reader = spawn_blocking(move || read_all(&path));
    let output = bytes.clone();
    let writer = spawn_blocking(move || process.write_all(&output));
    soon(writer).await.unwrap().unwrap();
    io.exited();
    assert!(soon(io.drain(LONG)).await);
    assert!(soon(reader).await.unwrap() == bytes);
    io.close().await;
}

#[tokio::test]
async fn a_terminal_that_somebody_keeps_open_ends_with_its_process() {
    let client = client(&["stdout"]);
    let (io, mut process) = attached(&client, raw_pty()).await;
    let path = client.stdout.clone();
    let reader = spawn_blocking(move || read_all(&path));
    process.write_all(b"written before the end").unwrap();
    io.exited();
    assert!(soon(io.drain(LONG)).await);
    assert_eq!(soon(reader).await.unwrap(), b"written before the end");
    drop(process);
    io.close().await;
}

#[tokio::test]
async fn a_terminal_may_be_closed_and_opened_again() {
    let client = client(&["stdout"]);
    let pty = raw_pty();
    let name = nix::unistd::ttyname(&pty.slave).unwrap();
    let (io, mut process) = attached(&client, pty).await;
    let path = client.stdout.clone();
    let reader = spawn_blocking(move || read_all(&path));
    for _ in 0..3 {
        process.write_all(b"open, ").unwrap();
        drop(process);
        // Long enough for the hang-up to be seen; if it is not, the test is only weaker.
        tokio::time::sleep(Duration::from_millis(150)).await;
        process = File::options().read(true).write(true).open(&name).unwrap();
    }
    process.write_all(b"end").unwrap();
    drop(process);
    io.exited();
    assert!(soon(io.drain(LONG)).await);
    assert_eq!(soon(reader).await.unwrap(), b"open, open, open, end");
    io.close().await;
}

#[tokio::test]
async fn input_is_typed_and_its_end_is_the_end_of_file_key() {
    let client = client(&["stdin", "stdout"]);
    // Not raw: lines, as for a shell.
    let (io, process) = attached(&client, openpty(None, None).unwrap()).await;
    let path = client.stdin.clone();
    apart(move || open_writer(&path).write_all(b"first\nunfinished")).await.unwrap();
    io.close_stdin();
    let mut input = process.try_clone().unwrap();
    let text = apart(move || {
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        text
    })
    .await;
    assert_eq!(text, "first\nunfinished");
    // Output goes on after the end of input.
    (&process).write_all(b"bye").unwrap();
    drop(process);
    io.exited();
    let path = client.stdout.clone();
    let all = apart(move || String::from_utf8(read_all(&path)).unwrap()).await;
    assert!(all.ends_with("bye"), "{all:?}");
    io.close().await;
}

#[tokio::test]
async fn more_input_than_a_terminal_takes_waits_for_the_process() {
    let client = client(&["stdin"]);
    let (io, process) = attached(&client, raw_pty()).await;
    let bytes = pattern(10, 400_000);
    let (path, input) = (client.stdin.clone(), bytes.clone());
    let writer = spawn_blocking(move || open_writer(&path).write_all(&input));
    let mut end = process.try_clone().unwrap();
    let all = apart(move || {
        let mut all = vec![0; 400_000];
        end.read_exact(&mut all).unwrap();
        all
    })
    .await;
    assert!(all == bytes);
    soon(writer).await.unwrap().unwrap();
    drop(process);
    io.close().await;
}

#[tokio::test]
async fn the_size_reaches_the_terminal_early_or_late() {
    let size = |process: &File| {
        let mut size = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open, and TIOCGWINSZ fills the structure it is given.
        unsafe { get_window_size(process.as_raw_fd(), &raw mut size) }.unwrap();
        (size.ws_col, size.ws_row)
    };
    let client = client(&["stdout"]);
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.resize(Size::of(100, 30).unwrap()).unwrap();
    let pty = raw_pty();
    send(&socket(&child), &[&pty.master]);
    io.attach().await.unwrap();
    let process = File::from(pty.slave);
    assert_eq!(size(&process), (100, 30));
    io.resize(Size::of(81, 25).unwrap()).unwrap();
    assert_eq!(size(&process), (81, 25));
    io.close().await;
    io.resize(Size::of(1, 1).unwrap()).unwrap();
}

#[tokio::test]
async fn without_a_terminal_a_size_means_nothing() {
    let client = Client::new();
    let (io, _child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.resize(Size::of(80, 25).unwrap()).unwrap();
    io.attach().await.unwrap();
    io.resize(Size::of(80, 25).unwrap()).unwrap();
    io.close().await;
}

#[tokio::test]
async fn only_one_terminal_and_nothing_else_is_accepted() {
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    let pty = raw_pty();
    for wrong in [&[][..], &[&file], &[&pty.master, &file], &[&file; 9]] {
        let client = client(&["stdout"]);
        let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
        let path = socket(&child);
        send(&path, wrong);
        assert_eq!(io.attach().await.unwrap_err().kind(), Code::Internal);
        assert!(!path.parent().unwrap().exists());
        io.close().await;
    }
}

#[tokio::test]
async fn a_runtime_that_sends_nothing_is_not_waited_for_for_ever() {
    let client = client(&["stdout"]);
    let (io, _child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    assert_eq!(soon(io.attach()).await.unwrap_err().kind(), Code::DeadlineExceeded);
    io.close().await;
}

#[tokio::test]
async fn the_socket_goes_with_a_terminal_that_was_never_attached() {
    let client = client(&["stdout"]);
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    let path = socket(&child);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(path.exists());
    io.close().await;
    assert!(!path.parent().unwrap().exists());
}

#[tokio::test]
async fn a_terminal_may_go_to_a_file_or_to_nobody() {
    let (witness, _guard) = Witness::watch();
    let mut client = client(&[]);
    let log = client.path("tty.log");
    for stdout in [format!("file://{}", log.display()), String::new()] {
        client.stdout = stdout;
        let (io, mut process) = attached(&client, raw_pty()).await;
        let bytes = pattern(11, 300_000);
        soon(spawn_blocking(move || process.write_all(&bytes))).await.unwrap().unwrap();
        io.exited();
        assert!(soon(io.drain(LONG)).await);
        io.close().await;
    }
    assert!(fs::read(&log).unwrap() == pattern(11, 300_000));
    assert_eq!(witness.warnings(), 0);
}

#[tokio::test]
async fn closing_hangs_up() {
    let client = client(&["stdin", "stdout"]);
    let (io, mut process) = attached(&client, raw_pty()).await;
    soon(io.close()).await;
    assert_eq!(apart(move || process.read(&mut [0; 8])).await.unwrap(), 0);
}

#[tokio::test]
async fn one_terminal_after_the_other_works() {
    for round in 0..5 {
        let client = client(&["stdin", "stdout"]);
        let (io, mut process) = attached(&client, raw_pty()).await;
        let text = format!("round {round}");
        process.write_all(text.as_bytes()).unwrap();
        drop(process);
        io.exited();
        let path = client.stdout.clone();
        assert_eq!(apart(move || read_all(&path)).await, text.as_bytes());
        io.close().await;
    }
}
