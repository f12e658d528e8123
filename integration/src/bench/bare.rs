//! The floor of calls: an OCI runtime that does the same without a shim, with the same global options that a shim gives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::contender::Runtime;
use super::pidfd::ended;
use crate::bundle::Bundle;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::spec;

/// A bundle that a runtime works on by itself. Its root filesystem is mounted beforehand: that is not the runtime's work.
#[derive(Debug)]
pub(super) struct Bare {
    runtime: PathBuf,
    root: PathBuf,
    id: String,
    dir: PathBuf,
}

impl Bare {
    /// Mounts the root filesystem.
    pub(super) fn new(fixture: &Fixture, runtime: &Runtime, bundle: &Bundle) -> Result<Self> {
        let bare = Self {
            runtime: runtime.binary.clone(),
            root: Path::new("/run/containerd/runc").join(fixture.namespace()),
            id: bundle.id.clone(),
            dir: bundle.dir.clone(),
        };
        let source = fixture.rootfs()?;
        let none = None::<&str>;
        mount(Some(&source), &bare.dir.join("rootfs"), none, MsFlags::MS_BIND, none)?;
        Ok(bare)
    }

    /// Create, start, wait for the end, delete.
    pub(super) fn run(&self) -> Result {
        let pid = self.create()?;
        self.start()?;
        ended(pid)?;
        self.delete()
    }

    /// Creates the container; gives the pid of its init.
    pub(super) fn create(&self) -> Result<i32> {
        let dir = self.dir.display().to_string();
        let file = self.dir.join("init.pid");
        self.call(&["create", "--bundle", &dir, "--pid-file", &file.display().to_string()])?;
        read_pid(&file)
    }

    /// Starts it.
    pub(super) fn start(&self) -> Result {
        self.call(&["start"])
    }

    /// Runs a process in it to its end; `process` is a file with its spec.
    pub(super) fn exec(&self, process: &Path) -> Result {
        let file = self.dir.join("exec.pid");
        let (spec, pid) = (process.display().to_string(), file.display().to_string());
        self.call(&["exec", "--detach", "--process", &spec, "--pid-file", &pid])?;
        ended(read_pid(&file)?)
    }

    /// A file with the spec of a process.
    pub(super) fn process(&self, argv: &[&str]) -> Result<PathBuf> {
        let file = self.dir.join("process.json");
        fs::write(&file, spec::process(argv).to_string())?;
        Ok(file)
    }

    /// Deletes it.
    pub(super) fn delete(&self) -> Result {
        self.call(&["delete"])
    }

    /// Deletes it whatever it does, and unmounts the root filesystem.
    pub(super) fn end(self, is_running: bool) -> Result {
        if is_running {
            self.call(&["delete", "--force"])?;
        }
        Ok(umount2(&self.dir.join("rootfs"), MntFlags::MNT_DETACH)?)
    }

    fn call(&self, verb: &[&str]) -> Result {
        let log = self.dir.join("log.json");
        let status = Command::new(&self.runtime)
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(&log)
            .args(["--log-format", "json"])
            .args(verb)
            .arg(&self.id)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context(self.runtime.display())?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        Err(Failure::new(format!("{} {verb:?}: {status}: {said}", self.runtime.display())))
    }
}

fn read_pid(file: &Path) -> Result<i32> {
    Ok(fs::read_to_string(file)?.trim().parse()?)
}
