//! Standard streams of containers and execs: the names a request carries, and the client's ends of the fifos.

use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};

/// The stream names of a Create or Exec request.
#[derive(Debug, Clone, Default)]
pub struct Stdio {
    /// Path, or empty for none.
    pub stdin: String,
    /// Path or URI, or empty for none.
    pub stdout: String,
    /// Path or URI, or empty for none.
    pub stderr: String,
    /// On a terminal.
    pub terminal: bool,
}

impl Stdio {
    /// No streams at all.
    #[must_use]
    pub fn null() -> Self {
        Self::default()
    }

    /// Makes fifos named `name`-stdin, -stdout, -stderr in `dir`, as containerd's client does.
    ///
    /// # Errors
    /// When a fifo cannot be made.
    pub fn fifos(dir: &Path, name: &str) -> Result<Self> {
        let make = |stream: &str| -> Result<String> {
            let path = dir.join(format!("{name}-{stream}"));
            mkfifo(&path, Mode::S_IRWXU).context(format!("making {}", path.display()))?;
            Ok(path.display().to_string())
        };
        Ok(Self {
            stdin: make("stdin")?,
            stdout: make("stdout")?,
            stderr: make("stderr")?,
            terminal: false,
        })
    }

    /// As [`Self::fifos`], with a terminal: no stderr.
    ///
    /// # Errors
    /// When a fifo cannot be made.
    pub fn terminal(dir: &Path, name: &str) -> Result<Self> {
        let fifos = Self::fifos(dir, name)?;
        Ok(Self { stderr: String::new(), terminal: true, ..fifos })
    }

    /// The same without stdin.
    #[must_use]
    pub fn without_stdin(self) -> Self {
        Self { stdin: String::new(), ..self }
    }
}

/// Reads a fifo to its end in the background. The reader is there when this returns.
///
/// # Errors
/// When the fifo cannot be opened.
pub fn collect(path: &str) -> Result<Collected> {
    let mut receiver =
        pipe::OpenOptions::new().open_receiver(path).context(format!("reading {path}"))?;
    let path = PathBuf::from(path);
    let task = tokio::spawn(async move {
        let mut bytes = Vec::new();
        receiver.read_to_end(&mut bytes).await.map(|_| bytes)
    });
    Ok(Collected { path, task })
}

/// Output on its way.
#[derive(Debug)]
pub struct Collected {
    path: PathBuf,
    task: JoinHandle<std::io::Result<Vec<u8>>>,
}

impl Collected {
    /// Everything up to the end of the stream.
    ///
    /// # Errors
    /// When the stream does not end.
    pub async fn bytes(self) -> Result<Vec<u8>> {
        let read = tokio::time::timeout(HANG, self.task).await;
        let read = read.map_err(|_| {
            Failure::new(format!("{} has no end after {HANG:?}", self.path.display()))
        })?;
        Ok(read??)
    }

    /// The same as text.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub async fn text(self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes().await?).into_owned())
    }
}

/// The client's end of a stdin fifo. Needs the shim's end to be open already, or `wait` for it.
#[derive(Debug)]
pub struct Input {
    sender: pipe::Sender,
}

impl Input {
    /// Opens the fifo, waiting until there is a reader.
    ///
    /// # Errors
    /// When no reader comes.
    pub async fn open(path: &str) -> Result<Self> {
        let what = format!("a reader of {path}");
        let open = || pipe::OpenOptions::new().open_sender(path).ok();
        let sender = crate::deadline::until_some(&what, HANG, open).await?;
        Ok(Self { sender })
    }

    /// Writes it all.
    ///
    /// # Errors
    /// When the reader is gone or takes nothing for too long.
    pub async fn write(&mut self, bytes: &[u8]) -> Result {
        let write = tokio::time::timeout(HANG, self.sender.write_all(bytes)).await;
        Ok(write.map_err(|_| Failure::new("stdin takes nothing"))??)
    }
}
