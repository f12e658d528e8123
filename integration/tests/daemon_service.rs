//! The daemon as a service manager sees it: the unit, what it is told by sd_notify, and `--help`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::Stdio;

use integration::containerd::Containerd;
use integration::daemon::{Daemon, Manner};
use integration::deadline;
use integration::failure::{Context, Result};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::{ensure, ensure_eq, paths};
use nix::sys::signal::Signal;
use tokio::process::Command;

/// A service manager's end of sd_notify.
struct Listener {
    socket: UnixDatagram,
    /// As `NOTIFY_SOCKET` has it.
    name: String,
}

impl Listener {
    fn at_path(fixture: &Fixture) -> Result<Self> {
        let path = fixture.file("notify");
        let socket = UnixDatagram::bind(&path)?;
        Self::new(socket, path.display().to_string())
    }

    fn abstract_one(fixture: &Fixture) -> Result<Self> {
        let name = format!("{}-notify", fixture.namespace());
        let address = SocketAddr::from_abstract_name(&name)?;
        Self::new(UnixDatagram::bind_addr(&address)?, format!("@{name}"))
    }

    fn new(socket: UnixDatagram, name: String) -> Result<Self> {
        socket.set_read_timeout(Some(deadline::HANG))?;
        Ok(Self { socket, name })
    }

    fn told(&self) -> Result<String> {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).context("no notification")?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// What has come and was not read.
    fn more(&self) -> Result<Option<String>> {
        self.socket.set_nonblocking(true)?;
        let more = self.told().ok();
        self.socket.set_nonblocking(false)?;
        Ok(more)
    }
}

fn notifies(listener: fn(&Fixture) -> Result<Listener>) -> Result {
    let Some(series) = series() else { return skip("no containerd in this machine's mirror") };
    scenario(async |fixture| {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let listener = listener(fixture)?;
        let containerd = Containerd::start(fixture, series).await?;
        let environment = vec![("NOTIFY_SOCKET".to_owned(), listener.name.clone())];
        let manner = Manner { environment, ..Manner::default() };
        let mut daemon = Daemon::start_as(fixture, &containerd, manner).await?;
        ensure_eq!(listener.told()?, "READY=1", "first word");
        // What it starts must not speak in its name.
        ensure_eq!(listener.more()?, None, "more words");
        let code = daemon.signal(Signal::SIGTERM).await?;
        ensure_eq!(code, Some(0), "exit code");
        ensure_eq!(listener.told()?, "STOPPING=1", "last word");
        ensure_eq!(listener.more()?, None, "more words");
        containerd.stop().await
    })
}

fn series() -> Option<&'static str> {
    ["2", "1.7", "1.6"].into_iter().find(|series| paths::containerd(series).is_some())
}

#[test]
fn readiness_and_stop_are_told_at_a_path() -> Result {
    notifies(Listener::at_path)
}

#[test]
fn readiness_and_stop_are_told_at_an_abstract_name() -> Result {
    notifies(Listener::abstract_one)
}

fn unit() -> PathBuf {
    paths::workspace().join("runtime-v2/dist/containerd-task-manager.service")
}

#[test]
fn systemd_finds_nothing_to_complain_of_in_the_unit() -> Result {
    scenario(async |fixture| {
        // It wants the executable to be there, which is installed elsewhere here.
        let text = std::fs::read_to_string(unit())?;
        let installed = "/usr/local/bin/containerd-task-manager";
        ensure!(text.contains(&format!("ExecStart={installed} serve")), "{text}");
        let here = paths::manager()?.display().to_string();
        let copy = fixture.file("containerd-task-manager.service");
        std::fs::write(&copy, text.replace(installed, &here))?;
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]).arg(&copy).stdin(Stdio::null()).kill_on_drop(true);
        let verified = match verify.output().await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return skip("no systemd-analyze on this machine");
            }
            other => other?,
        };
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        // Of other units of this machine it may have something to say.
        let about_ours: Vec<&str> =
            said.lines().filter(|line| line.contains("task-manager")).collect();
        ensure!(verified.status.success() && about_ours.is_empty(), "{said}");
        Ok(())
    })
}

#[test]
fn help_names_every_setting_with_its_default() -> Result {
    scenario(async |_| {
        let help = async |words: &[&str]| {
            let mut command = Command::new(paths::manager()?);
            command.args(words).stdin(Stdio::null()).kill_on_drop(true);
            let output = deadline::ended(command).await?;
            ensure!(output.status.success(), "{words:?} fails");
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let serve = help(&["serve", "--help"]).await?;
        let example = std::fs::read_to_string(unit().with_file_name("config.toml"))?;
        let named = example.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
        for (name, _) in named.filter(|(name, _)| !name.contains(' ')) {
            let flag = format!("--{}", name.replace('_', "-"));
            ensure!(serve.contains(&flag), "{flag} is not in\n{serve}");
        }
        for command in ["serve", "ls", "doctor"] {
            ensure!(help(&["--help"]).await?.contains(command), "--help has no {command}");
            let short = help(&[command, "-h"]).await?;
            ensure!(short.lines().all(|line| line.len() <= 120), "too wide:\n{short}");
        }
        Ok(())
    })
}
