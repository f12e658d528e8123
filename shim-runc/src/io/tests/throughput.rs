//! What the relay costs, beside the copy loop that containerd's Go shim runs (4 kB at a time).
//! `cargo test --release -p shim-runc --lib throughput -- --ignored --nocapture`

use std::{
    fs::File,
    io::{Read as _, Write as _},
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use tokio::runtime::Builder;

use super::{
    super::ProcessIo,
    client::{Client, NoSpawn, open_writer, process_end},
};

const TOTAL: usize = 1 << 30;

fn cpu_of_thread() -> Duration {
    let usage: Usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .sum::<i64>();
    Duration::from_micros(micros.unsigned_abs())
}

/// Writes in pieces of `size`.
fn produce(mut end: File, size: usize, total: usize) {
    let piece = vec![b'x'; size];
    for _ in 0..total / size {
        end.write_all(&piece).unwrap();
    }
}

fn consume(path: &str) -> usize {
    let mut reader = File::open(path).unwrap();
    let mut buffer = vec![0; 32 << 10];
    let mut total = 0;
    loop {
        match reader.read(&mut buffer).unwrap() {
            0 => return total,
            filled => total += filled,
        }
    }
}

/// Wall time and CPU of the relaying thread alone.
fn relay(size: usize, total: usize) -> (Duration, Duration) {
    let mut client = Client::new();
    client.stdout = client.fifo("stdout");
    let path = client.stdout.clone();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (io, child) = ProcessIo::open(&client.request(&NoSpawn)).await.unwrap();
        let (start, cpu) = (Instant::now(), cpu_of_thread());
        let end = process_end(child.stdout);
        let producer = thread::spawn(move || produce(end, size, total));
        let consumer = thread::spawn(move || consume(&path));
        io.attach().await.unwrap();
        assert!(io.drain(Duration::from_secs(600)).await);
        let cost = (start.elapsed(), cpu_of_thread() - cpu);
        producer.join().unwrap();
        assert_eq!(consumer.join().unwrap(), total / size * size);
        io.close().await;
        cost
    })
}

fn copy_loop(size: usize, total: usize) -> (Duration, Duration) {
    let client = Client::new();
    let path = client.fifo("stdout");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let start = Instant::now();
    let end = File::from(std::os::fd::OwnedFd::from(writer));
    let producer = thread::spawn(move || produce(end, size, total));
    let consumer = {
        let path = path.clone();
        thread::spawn(move || consume(&path))
    };
    let cpu = thread::spawn(move || {
        let (mut fifo, cpu) = (open_writer(&path), cpu_of_thread());
        let mut buffer = [0; 4096];
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => return cpu_of_thread() - cpu,
                filled => fifo.write_all(&buffer[..filled]).unwrap(),
            }
        }
    });
    let cpu = cpu.join().unwrap();
    producer.join().unwrap();
    consumer.join().unwrap();
    (start.elapsed(), cpu)
}

#[test]
#[ignore = "a measurement, not a test"]
fn relay_beside_copy_loop() {
    for (size, total) in [(64 << 10, TOTAL), (4 << 10, TOTAL), (100, TOTAL / 16)] {
        for round in 0..3 {
            let (wall, cpu) = relay(size, total);
            let (copy_wall, copy_cpu) = copy_loop(size, total);
            println!(
                "writes of {size:5}, {} MiB, round {round}: relay {wall:.2?} cpu {cpu:.2?}; \
                 copy loop {copy_wall:.2?} cpu {copy_cpu:.2?}",
                total >> 20,
            );
        }
    }
}
