//! The directory a container lives in on the host, and what is written there.
//!
//! ```text
//! <state>/<namespace>/<id>/            0700, or 0710 and the container root's group
//!     config.json                      the OCI spec, as the client sent it
//!     rootfs/                          where the shim mounts the root file system
//!     work -> <root>/<namespace>/<id>  survives a reboot
//!     log                              fifo, the shim's log
//!     shim-binary-path                 what to run for `delete`
//!     bootstrap.json                   where the shim listens and what it speaks
//!     sandbox                          whose shim this container shares
//!     shim-shared                      there if this manager has to end that shim; read by nobody else
//!     end.json                         the end of the task, once published; read by nobody else
//! ```
//! Everything is laid out as containerd's own plugin does (core/runtime/v2/bundle.go), so that
//! either manager can take over from the other. All calls here block and are short, but for
//! [`Bundle::remove`]; callers on the runtime go through [`Bundle::blocking`].

mod dirs;
mod files;
mod gid;
mod mounts;
mod remove;

use std::path::{Path, PathBuf};

use runtime_proto::{errdefs::Code, types::Any};

use crate::{
    config::Config,
    error::{Error, Result},
    id::Key,
};

pub(crate) use files::{EndNote, Located};

/// How a container came to its shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Its `start` was run in this bundle. It may still have joined the shim of its group.
    Started,
    /// By the address of the sandbox it belongs to, whose shim this manager has started, and has to
    /// end with its last container.
    Shared,
    /// By the address of the sandbox it belongs to, whose shim somebody else looks after.
    Joined,
}

impl Origin {
    /// Whether it is for this manager to see to the end of the process.
    pub(crate) fn is_ours(self) -> bool {
        self != Self::Joined
    }
}

/// A bundle's place; the directory may or may not exist.
#[derive(Debug, Clone)]
pub struct Bundle {
    key: Key,
    path: PathBuf,
    work: PathBuf,
}

impl Bundle {
    /// Where the bundle of `key` is.
    pub fn at(config: &Config, key: Key) -> Self {
        let below = |base: &Path| base.join(key.namespace.as_str()).join(key.id.as_str());
        Self { path: below(&config.state), work: below(&config.root), key }
    }

    /// Makes the directories and writes `config.json`. What was made is removed on failure.
    ///
    /// # Errors
    /// `AlreadyExists` if the directory is there already, which is then untouched.
    pub fn create(config: &Config, key: Key, spec: Option<&Any>) -> Result<Self> {
        let bundle = Self::at(config, key);
        let gid = spec.and_then(gid::of_container_root);
        dirs::make_parents(&config.state, &bundle.path)?;
        dirs::make_bundle(&bundle.path, gid)?;
        let rest = bundle.fill(config, spec);
        if let Err(error) = rest {
            // The first error is the one to tell; what is left over is told by the next attempt.
            let _ = bundle.remove();
            return Err(error);
        }
        Ok(bundle)
    }

    fn fill(&self, config: &Config, spec: Option<&Any>) -> Result<()> {
        dirs::make(&self.path.join("rootfs"), 0o711)?;
        dirs::make_parents(&config.root, &self.work)?;
        dirs::make_work(&self.work)?;
        std::os::unix::fs::symlink(&self.work, self.path.join("work"))
            .map_err(|error| Error::io(format!("link work directory of {}", self.key), error))?;
        match spec {
            Some(spec) if !spec.value.is_empty() => {
                files::write(&self.path.join("config.json"), &spec.value)
            }
            _ => Ok(()),
        }
    }

    /// Whose bundle this is.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs something slow about this bundle off the runtime's threads.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn blocking<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Bundle) -> Result<T> + Send + 'static,
    {
        let bundle = self.clone();
        tokio::task::spawn_blocking(move || work(&bundle)).await.unwrap_or_else(|error| {
            let context = format!("work on bundle {} was cut off", self.key);
            Err(Error::caused(Code::Internal, context, error))
        })
    }

    /// Notes what has been told of the task's end. A note that cannot be written costs a second
    /// event, and that only if this manager is killed within the next instant.
    pub(crate) async fn note_end(&self, note: EndNote) {
        self.note(move |bundle| bundle.write_end(note)).await;
    }

    /// Notes that a deletion begins. A note that cannot be written costs the events of the end, and that only if this manager is
    /// killed behind the shim's deletion and neither of them was heard.
    pub(crate) async fn note_deleting(&self) {
        self.note(Bundle::write_deleting).await;
    }

    async fn note(&self, write: impl FnOnce(&Bundle) -> Result<()> + Send + 'static) {
        if let Err(error) = self.blocking(write).await
            && error.kind() != Code::NotFound
        {
            let (namespace, id) = (&self.key.namespace, &self.key.id);
            tracing::warn!(%namespace, %id, %error, "an end is not noted");
        }
    }
}

#[cfg(test)]
mod tests;
