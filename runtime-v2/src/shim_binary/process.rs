//! One short-lived process: fed, read, waited for, and killed if it takes too long.

use std::{
    ffi::OsString,
    future::pending,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use runtime_proto::errdefs::Code;
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe::{self, Receiver},
    process::{Child, ChildStdin, Command},
    task::yield_now,
    time::timeout,
};

use crate::error::{Error, Result};

/// More than this on stdout or stderr is read and thrown away; real answers have a few hundred
/// bytes, and those of `-info` some ten thousand.
const MAX_OUTPUT: usize = 1 << 20;

/// What to run and how.
#[derive(Debug)]
pub(super) struct Run<'a> {
    binary: &'a Path,
    limit: Duration,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) stdin: Vec<u8>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl<'a> Run<'a> {
    pub(super) fn new(binary: &'a Path, limit: Duration) -> Self {
        Self { binary, limit, args: Vec::new(), env: Vec::new(), cwd: None, stdin: Vec::new() }
    }

    /// Runs it and gives its stdout; anything but success is an error with all it said.
    pub(super) async fn answer(&mut self) -> Result<Vec<u8>> {
        let (status, output) = self.output().await?;
        if !status.success() {
            let said = format!("{} ({status})", said(&output));
            return Err(Error::caused(Code::Unknown, self.title(), said));
        }
        if !output.stderr.is_empty() {
            tracing::debug!(run = self.title(), stderr = %said(&output), "a shim binary warned");
        }
        Ok(output.stdout)
    }

    /// Runs it to its end, whichever that is.
    pub(super) async fn output(&mut self) -> Result<(ExitStatus, Output)> {
        let failed = |error| Error::io(format!("run {}", self.title()), error);
        let (mut child, stdout, stderr) = self.spawn().map_err(failed)?;
        let mut output = Output::default();
        let stdin = child.stdin.take();
        let ended = {
            let talk = async {
                tokio::join!(
                    feed(stdin, &self.stdin),
                    collect(&stdout, &mut output.stdout),
                    collect(&stderr, &mut output.stderr),
                );
                pending().await
            };
            tokio::select! {
                ended = timeout(self.limit, child.wait()) => ended,
                ended = talk => ended,
            }
        };
        drain(&stdout, &mut output.stdout);
        drain(&stderr, &mut output.stderr);
        match ended {
            Ok(status) => Ok((status.map_err(failed)?, output)),
            Err(_) => {
                kill(&mut child).await;
                let text =
                    format!("killed after {:?} without an end; {}", self.limit, said(&output));
                Err(Error::caused(Code::DeadlineExceeded, self.title(), text))
            }
        }
    }

    fn spawn(&self) -> io::Result<(Child, Receiver, Receiver)> {
        let (out_writer, stdout) = pipe::pipe()?;
        let (err_writer, stderr) = pipe::pipe()?;
        let mut command = Command::new(self.binary);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(if self.stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(out_writer.into_blocking_fd()?)
            .stderr(err_writer.into_blocking_fd()?)
            // Its own group: a signal for the daemon's group is not meant for shims.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        Ok((command.spawn()?, stdout, stderr))
    }

    /// For messages: the binary's name and the last word of the command line.
    fn title(&self) -> String {
        let action = self.args.last().map(|arg| arg.to_string_lossy()).unwrap_or_default();
        let id = self.args.iter().skip_while(|arg| *arg != "-id").nth(1);
        let id = id.map(|id| format!(" for {}", id.to_string_lossy())).unwrap_or_default();
        format!("{} {action}{id}", self.binary.display())
    }
}

async fn feed(stdin: Option<ChildStdin>, bytes: &[u8]) {
    if let Some(mut stdin) = stdin {
        // A process that does not read its stdin is within its rights.
        let _ = stdin.write_all(bytes).await;
    }
}

async fn collect(receiver: &Receiver, into: &mut Vec<u8>) {
    while receiver.readable().await.is_ok() {
        if !read_some(receiver, into) {
            return;
        }
        // One that writes faster than this reads must not keep the thread, and its limit, at bay.
        yield_now().await;
    }
}

/// What was written before the end is in the pipe already, so there is nothing to wait for.
fn drain(receiver: &Receiver, into: &mut Vec<u8>) {
    let mut left = MAX_OUTPUT;
    while left > 0 {
        let before = into.len();
        if !read_some(receiver, into) || into.len() == before {
            return;
        }
        left = left.saturating_sub(into.len() - before);
    }
}

/// Reads what is there; false at the end of the stream.
fn read_some(receiver: &Receiver, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 8192];
    match receiver.try_read(&mut buffer) {
        Ok(0) => false,
        Ok(count) => {
            let room = MAX_OUTPUT.saturating_sub(into.len());
            into.extend_from_slice(&buffer[..count.min(room)]);
            true
        }
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Kills the process and what it has started in its group, and waits for its end.
async fn kill(child: &mut Child) {
    if let Some(group) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // The leader is not yet waited for, so the group's number is still its own.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait().await;
}

/// What a process said, for an error message.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let said = [text(&output.stderr), text(&output.stdout)];
    let said: Vec<_> = said.into_iter().filter(|text| !text.is_empty()).collect();
    if said.is_empty() { "it said nothing".into() } else { said.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upper bound for things that must happen; only a hang meets it.
    const HANG: Duration = Duration::from_secs(20);

    fn shell(script: &str, limit: Duration) -> Run<'static> {
        let mut run = Run::new(Path::new("/bin/sh"), limit);
        run.args = vec!["-c".into(), script.into()];
        run
    }

    #[tokio::test]
    async fn stderr_does_not_spoil_the_answer() {
        let mut run = shell("echo warning >&2; cat", HANG);
        run.stdin = vec![b'x'; 300_000];
        assert_eq!(run.answer().await.unwrap(), run.stdin);
    }

    #[tokio::test]
    async fn a_failure_tells_all_that_was_said() {
        let error = shell("echo one; echo two >&2; exit 3", HANG).answer().await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("two\none") && text.contains("exit status: 3"), "{text}");
    }

    #[tokio::test]
    async fn an_inherited_stdout_is_not_waited_for() {
        // With this limit, waiting for the sleeper's end would hang the test.
        let mut run = shell("sleep 1000 & echo $!", Duration::from_secs(3600));
        let answer = timeout(HANG, run.answer()).await.unwrap().unwrap();
        let sleeper: i32 = String::from_utf8(answer).unwrap().trim().parse().unwrap();
        nix::sys::signal::kill(Pid::from_raw(sleeper), Signal::SIGKILL).unwrap();
    }

    #[tokio::test]
    async fn one_that_hangs_is_killed_with_its_children() {
        // Long enough for a busy machine to get to the echo.
        let mut run = shell("sleep 1000 & echo $!; wait", Duration::from_secs(5));
        let error = run.answer().await.unwrap_err();
        assert_eq!(error.kind(), Code::DeadlineExceeded);
        let text = error.to_string();
        let sleeper: i32 = text.rsplit(['\n', ' ']).next().unwrap().parse().unwrap();
        // It was killed; when it gets to die is the scheduler's business.
        let stat = || std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
        let deadline = tokio::time::Instant::now() + HANG;
        while !(stat().is_empty() || stat().contains(") Z")) {
            assert!(tokio::time::Instant::now() < deadline, "{}", stat());
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn endless_output_costs_bounded_memory() {
        let (_, output) = shell("head -c 5000000 /dev/zero", HANG).output().await.unwrap();
        assert_eq!(output.stdout.len(), MAX_OUTPUT);
    }

    /// On one thread, which the reading must give back for the limit to be seen.
    #[tokio::test]
    async fn endless_output_does_not_outlast_its_limit() {
        let script = "for n in 1 2 3 4; do cat /dev/zero & done; wait";
        for _ in 0..3 {
            let error = shell(script, Duration::from_millis(300)).answer().await.unwrap_err();
            assert_eq!(error.kind(), Code::DeadlineExceeded);
        }
    }

    #[tokio::test]
    async fn a_missing_binary_is_named() {
        let error = Run::new(Path::new("/nonexistent/shim"), HANG).answer().await.unwrap_err();
        assert_eq!(error.kind(), Code::NotFound);
        assert!(error.to_string().contains("/nonexistent/shim"), "{error}");
    }
}
