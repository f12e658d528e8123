//! Checkpoint, and the log of criu when it or a restore fails.

use std::path::{Path, PathBuf};

use runtime_proto::options::{CHECKPOINT_PARENT_PATH_FIELD, CheckpointOptions, string_field};

use super::Container;
use crate::{
    error::{Error, Result},
    process::state::Verb,
    runc::CheckpointPaths,
    threads,
};

/// Where criu's log of a failed call is kept in the bundle; its own directory does not last.
const KEPT_LOG: &str = "criu-dump.log";

impl Container {
    /// Writes a checkpoint of the container to `path`; it goes on running unless the options say
    /// otherwise.
    ///
    /// # Errors
    /// FailedPrecondition unless it runs; what the runtime says, with the path of criu's log.
    pub async fn checkpoint(&self, path: &str, options: &CheckpointOptions) -> Result<()> {
        let _op = self.init.op.lock().await;
        self.init.snapshot().state.allows(Verb::Checkpoint)?;
        let (work, temporary) = match options.work_path.as_str() {
            "" => (self.bundle.join("work").join("criu-work"), true),
            work => (PathBuf::from(work), false),
        };
        if temporary {
            std::fs::create_dir_all(&work)
                .map_err(|error| Error::io(format!("make {}", work.display()), error))?;
        }
        let image = if path.is_empty() { options.image_path.as_str() } else { path };
        let parent = string_field(
            protobuf::Message::special_fields(options).unknown_fields(),
            CHECKPOINT_PARENT_PATH_FIELD,
        );
        let paths = CheckpointPaths {
            image: Path::new(image),
            work: &work,
            parent: (!parent.is_empty()).then(|| Path::new(&parent)),
        };
        let done = self.while_alive(self.runc.checkpoint(&self.id, options, paths)).await;
        let done = done.map_err(|error| self.with_criu_log(error, &work, "dump.log"));
        if temporary {
            let removed = threads::run(move || {
                std::fs::remove_dir_all(&work)
                    .map_err(|error| Error::io(format!("remove {}", work.display()), error))
            });
            if let Err(error) = removed.await.and_then(|done| done) {
                tracing::warn!(id = self.id, %error, "criu's work directory is left");
            }
        }
        done
    }

    /// Keeps criu's log of a failed call, and names its path in the error.
    pub(super) fn with_criu_log(&self, error: Error, work: &Path, log: &str) -> Error {
        let kept = self.bundle.join(KEPT_LOG);
        if std::fs::copy(work.join(log), &kept).is_err() {
            return error;
        }
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Error::new(error.kind(), format!("{first} path= {}", kept.display()))
    }
}
