use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, thread, time::Duration};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use runtime_proto::errdefs::Code;

use super::{
    super::ProcessIo,
    client::{Client, NoSpawn, Witness, apart, pattern, process_end, soon, until, write_apart},
};

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_log_file_is_made_with_its_directories_and_appended_to() {
    let mut client = Client::new();
    let log = client.path("a/b/box.log");
    client.stdout = format!("file://{}", log.display());
    for round in 0..2 {
        let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
        io.attach().await.unwrap();
        writeln!(process_end(child.stdout), "round {round}").unwrap();
        assert!(io.drain(LONG).await);
        io.close().await;
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "round 0\nround 1\n");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(log.as_path()) & !0o644, 0);
    assert_eq!(mode(log.parent().unwrap()) & !0o755, 0);
}

#[tokio::test]
async fn both_streams_append_to_one_file_exactly() {
    let mut client = Client::new();
    let log = client.path("box.log");
    client.stdout = format!("file://{}", log.display());
    client.stderr = client.stdout.clone();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let writers = [
        write_apart(process_end(child.stdout), vec![b'o'; 8 << 20]),
        write_apart(process_end(child.stderr), vec![b'e'; 8 << 20]),
    ];
    assert!(io.drain(LONG).await);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    let bytes = fs::read(&log).unwrap();
    assert_eq!(bytes.iter().filter(|byte| **byte == b'o').count(), 8 << 20);
    assert_eq!(bytes.iter().filter(|byte| **byte == b'e').count(), 8 << 20);
    io.close().await;
}

#[tokio::test]
async fn an_existing_file_is_a_sink_and_a_missing_one_is_not_made() {
    let mut client = Client::new();
    let file = client.path("output");
    client.stdout = file.to_str().unwrap().to_owned();
    let error = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    fs::write(&file, "before\n").unwrap();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let bytes = pattern(7, 5 << 20);
    let writer = write_apart(process_end(child.stdout), bytes.clone());
    assert!(io.drain(LONG).await);
    writer.join().unwrap().unwrap();
    assert!(fs::read(&file).unwrap() == [b"before\n".as_slice(), &bytes].concat());
    io.close().await;
}

#[tokio::test]
async fn a_rotated_log_goes_on_at_its_new_end() {
    let mut client = Client::new();
    let log = client.path("box.log");
    client.stdout = format!("file://{}", log.display());
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let mut process = process_end(child.stdout);
    process.write_all(b"old\n").unwrap();
    until("the line is in the log", || fs::metadata(&log).unwrap().len() == 4).await;
    fs::File::create(&log).unwrap();
    process.write_all(b"new\n").unwrap();
    drop(process);
    assert!(io.drain(LONG).await);
    assert_eq!(fs::read_to_string(&log).unwrap(), "new\n");
    io.close().await;
}

#[tokio::test]
async fn a_full_disk_stops_no_process_and_is_reported_once() {
    let (witness, _guard) = Witness::watch();
    let mut client = Client::new();
    client.stdout = "/dev/full".to_owned();
    let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
    io.attach().await.unwrap();
    let writer = write_apart(process_end(child.stdout), pattern(8, 20 << 20));
    assert!(soon(io.drain(LONG)).await);
    apart(move || writer.join().unwrap().unwrap()).await;
    assert_eq!(witness.warnings(), 1);
    io.close().await;
}

/// A file system of 64 kB that only this thread can see, and others by way of it.
fn tiny_disk(directory: &std::path::Path) -> bool {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing))
        .and_then(|()| {
            mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("size=64k"))
        })
        .is_ok()
}

#[test]
fn a_log_resumes_when_its_disk_has_room_again() {
    let test = async |log: std::path::PathBuf, client: &Client| {
        let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
        io.attach().await.unwrap();
        let mut process = process_end(child.stdout);
        let flood = write_apart(process.try_clone().unwrap(), vec![b'x'; 1 << 20]);
        until("the flood is over", || flood.is_finished()).await;
        until("a line is in the log", || {
            // The end of the flood is still in the pipe and may fill the disk once more.
            if fs::metadata(&log).unwrap().len() > 32 << 10 {
                fs::File::create(&log).unwrap();
            }
            process.write_all(b"alive\n").unwrap();
            fs::read_to_string(&log).unwrap().contains("alive")
        })
        .await;
        drop(process);
        io.close().await;
    };
    let apart = thread::spawn(move || {
        let mut client = Client::new();
        if !tiny_disk(client.directory.path()) {
            return;
        }
        let log = client.path("box.log");
        let here = format!("/proc/self/task/{}/root", nix::unistd::gettid());
        client.stdout = format!("file://{here}{}", log.display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let disk = client.directory.path().to_owned();
        runtime.block_on(test(log, &client));
        umount2(&disk, MntFlags::MNT_DETACH).unwrap();
    });
    apart.join().unwrap();
}
