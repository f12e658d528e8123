//! What may go wrong at every step of a story.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;

use super::node::Node;
use super::shims::ShimBinary;
use crate::failure::{Context, Failure, Result};

/// One of them. It happens again and again: at or after every step that a node is told to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// All goes well.
    None,
    /// Another shim binary lies on the disk after every step: ours for Go's, Go's for ours, ours for a newer ours.
    SwappedShims,
    /// The task manager is killed after every step, where ours plays.
    KilledManager,
    /// The task manager is killed in the middle of every creation and deletion, where ours plays.
    KilledAtWork,
    /// All of containerd is killed after every step.
    KilledContainerd,
    /// The disk of the state directory is full at every step, where ours plays. Afterwards there is space again.
    FullDisk,
}

impl Node<'_> {
    /// What happens after a step.
    pub(super) async fn after_step(&mut self) -> Result {
        /// One after the other; the second ours is the newer one, a file of its own.
        const BINARIES: [ShimBinary; 5] = [
            ShimBinary::Ours,
            ShimBinary::Ours,
            ShimBinary::Go("2"),
            ShimBinary::Ours,
            ShimBinary::Go("1.7"),
        ];
        match self.mishap {
            Mishap::SwappedShims => {
                let next = BINARIES.get(self.swaps % BINARIES.len()).copied();
                let next = next.unwrap_or(ShimBinary::Ours);
                self.swaps += 1;
                next.install(self.fixture)?;
                self.story.aside(format!("{next} lies on the disk now"));
            }
            Mishap::KilledManager if self.glue().is_some() => {
                self.story.aside("kill -9 of the manager");
                self.kill_manager().await?;
                self.start_manager().await?;
                self.check().await.context("after kill -9 of the manager")?;
            }
            Mishap::KilledContainerd if self.playing.is_some() => {
                self.story.aside(format!("kill -9 of {}", self.player));
                self.end(Signal::SIGKILL).await?;
                self.boot(self.player).await.context("after kill -9")?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A file system of a few megabytes, which can be filled.
#[derive(Debug)]
pub struct SmallDisk {
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
    pub(super) fn fill(&self) -> Result<Full> {
        let path = self.dir.join(".full");
        let mut file = File::create(&path).context("filling the disk")?;
        let full = Full { path };
        for size in [65536, 4096, 1] {
            loop {
                match file.write_all(&vec![0; size]) {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => break,
                    Err(error) => return Err(Failure::from(error)),
                }
            }
        }
        Ok(full)
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When it is in use still.
    pub(super) fn unmount(self) -> Result {
        umount(&self.dir).context(format!("unmounting {}", self.dir.display()))
    }
}

/// A disk that is full.
#[derive(Debug)]
pub(super) struct Full {
    path: PathBuf,
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
