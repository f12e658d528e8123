//! The disk that a node has its state directory on, where that disk is what goes wrong.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};

use super::mishap::Mishap;
use super::node::{Container, Node};
use crate::failure::{Context, Failure, Result};
use crate::fakerunc::{Gate, Rule};

/// What a small file takes.
const PAGE: u64 = 4096;

/// A file system of a few megabytes, which can be filled.
#[derive(Debug)]
pub(super) struct SmallDisk {
    dir: PathBuf,
}

impl SmallDisk {
    /// Mounts it.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub(super) fn mount(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        mount(Some("none"), dir, Some("tmpfs"), MsFlags::empty(), Some("size=4m,mode=711"))
            .context(format!("mounting {}", dir.display()))?;
        Ok(Self { dir: dir.to_path_buf() })
    }

    /// Fills it to the last byte; free again when the result is dropped.
    ///
    /// # Errors
    /// When it cannot be filled.
    pub(super) fn fill(&self) -> Result<Spoilt> {
        self.fill_but(0)
    }

    /// Fills it but for some bytes at its end.
    ///
    /// # Errors
    /// When it cannot be filled.
    fn fill_but(&self, room: u64) -> Result<Spoilt> {
        let path = self.dir.join(".full");
        let mut file = File::create(&path).context("filling the disk")?;
        let full = Spoilt::Full(path);
        for size in [65536, 4096, 1] {
            loop {
                match file.write_all(&vec![0; size]) {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => break,
                    Err(error) => return Err(Failure::from(error)),
                }
            }
        }
        file.set_len(file.metadata()?.len().saturating_sub(room))?;
        Ok(full)
    }

    /// Allows no writing until the result is dropped.
    ///
    /// # Errors
    /// When something is open for writing there.
    pub(super) fn protect(&self) -> Result<Spoilt> {
        remount(&self.dir, MsFlags::MS_RDONLY).context("making the disk read-only")?;
        Ok(Spoilt::ReadOnly(self.dir.clone()))
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When it is in use still.
    pub(super) fn unmount(self) -> Result {
        umount(&self.dir).context(format!("unmounting {}", self.dir.display()))
    }
}

fn remount(dir: &Path, flags: MsFlags) -> nix::Result<()> {
    mount(None::<&str>, dir, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>)
}

/// A disk that cannot be written to, until this is dropped.
#[derive(Debug)]
pub(super) enum Spoilt {
    /// By this file, which takes all space.
    Full(PathBuf),
    /// By the flags of the mount.
    ReadOnly(PathBuf),
}

impl Drop for Spoilt {
    fn drop(&mut self) {
        match self {
            Self::Full(file) => drop(std::fs::remove_file(file)),
            Self::ReadOnly(dir) => drop(remount(dir, MsFlags::empty())),
        }
    }
}

impl Node<'_> {
    /// What is wrong with the disk of the state directory whenever our manager starts.
    pub(super) fn spoil_disk(&self) -> Result<Option<Spoilt>> {
        let Some(disk) = &self.disk else { return Ok(None) };
        match self.mishap {
            Mishap::FullDisk => disk.fill().map(Some),
            // A manager that has never been here has its lock to make.
            Mishap::ReadOnlyDisk if self.bundles().with_file_name(".lock").exists() => {
                disk.protect().map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Creates a container on a disk that becomes full meanwhile, with room for the runtime's pid file and no more. If it is
    /// refused for that, there is nothing of it.
    ///
    /// # Errors
    /// When something of it stays.
    pub(super) async fn create_while_disk_fills(&mut self, container: &Container) -> Result<bool> {
        let id = &container.id;
        let gate = Gate::new(self.fixture, &format!("fill-{id}"));
        let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on("create").of(id) };
        self.runc.obey(&[rule])?;
        let filling = async {
            gate.reached().await?;
            let full = self.disk.as_ref().map(|disk| disk.fill_but(PAGE)).transpose()?;
            gate.open().map(|()| full)
        };
        let (tried, full) = tokio::join!(self.ask_for(container), filling);
        drop(full?);
        self.runc.obey(&[])?;
        let said = match tried {
            Ok(status) => return self.keep(container, status).await.map(|()| true),
            Err(said) => said,
        };
        self.story.aside(format!("while the disk fills {id} is refused"));
        self.nothing_of(container).await.context(format!("after {said}"))?;
        Ok(false)
    }

    /// The disk becomes full, if that is what goes wrong at every step.
    pub(super) fn fill_disk(&self) -> Result<Option<Spoilt>> {
        let full = self.mishap == Mishap::FullDisk && self.has_manager();
        self.disk.as_ref().filter(|_| full).map(SmallDisk::fill).transpose()
    }
}
