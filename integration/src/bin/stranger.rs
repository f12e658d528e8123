//! Connects to a shim's socket as whoever runs it, makes a call, and says how it was received.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A shim answers at once or not at all.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // An empty request on stream 1: nonsense, but a shim that serves us says so.
    let sent = stream.write_all(&[0, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
    let received = sent.and_then(|()| stream.read(&mut [0; 16]));
    let said = match received {
        Ok(0) => "turned away",
        Ok(_) => "served",
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => "turned away",
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => "turned away",
        Err(error) => return Err(error),
    };
    writeln!(io::stdout(), "{said}")
}
