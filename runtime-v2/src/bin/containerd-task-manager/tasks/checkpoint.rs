//! Checkpoints: out of a task into the content store, and back.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::{fs::File, task::spawn_blocking};
use tonic::Status;

use super::{Tasks, call::Call};
use crate::{
    api::{
        Descriptor,
        tasks::{CheckpointTaskRequest, CheckpointTaskResponse},
    },
    convert,
    grpc::status,
};

/// A tar of what criu wrote (containerd core/images/mediatypes.go).
const IMAGE: &str = "application/vnd.containerd.container.criu.checkpoint.criu.tar";

/// The spec that the container had.
const CONFIG: &str = "application/vnd.containerd.container.checkpoint.config.v1+proto";

impl Tasks {
    pub(super) async fn checkpoint(
        &self,
        call: &Call,
        request: CheckpointTaskRequest,
    ) -> Result<CheckpointTaskResponse, Status> {
        let container = self.container(call, &request.container_id).await?;
        let task = self.task(call, &request.container_id).await?;
        let place = match &request.options {
            Some(options) => match convert::checkpoint_path(options) {
                Ok(Some(place)) => place,
                Ok(None) => {
                    let text = format!("invalid task checkpoint option for {}", options.type_url);
                    return Err(Status::unknown(text));
                }
                Err(why) => {
                    return Err(Status::invalid_argument(format!("{why}: invalid argument")));
                }
            },
            None => String::new(),
        };
        let options = request.options.map(convert::any_in);
        if !place.is_empty() {
            // The client has named a directory of its own, and wants nothing stored.
            task.checkpoint(&place, options).await.map_err(|error| status(&error))?;
            return Ok(CheckpointTaskResponse::default());
        }
        let dir = temporary_dir()?;
        let path = dir.path().display().to_string();
        task.checkpoint(&path, options).await.map_err(|error| status(&error))?;
        let image = self.store_image(call, dir.path()).await?;
        let spec = convert::any_bytes(container.spec.unwrap_or_default());
        let spec = spec.map_err(|why| Status::internal(format!("encode the spec: {why}")))?;
        let reference = format!("{path}/spec");
        let config =
            self.containerd.write_blob(&call.scope, &reference, CONFIG, spec.as_slice()).await?;
        Ok(CheckpointTaskResponse { descriptors: vec![image, config] })
    }

    async fn store_image(&self, call: &Call, dir: &Path) -> Result<Descriptor, Status> {
        let tar = temporary_dir()?;
        let file = tar.path().join("image.tar");
        let (from, into) = (dir.to_path_buf(), file.clone());
        blocking(move || pack(&from, &into)).await?;
        let opened = File::open(&file).await.map_err(|error| failed("read", &file, &error))?;
        let reference = dir.display().to_string();
        self.containerd.write_blob(&call.scope, &reference, IMAGE, opened).await
    }

    /// Unpacks a checkpoint from the content store into a directory of its own.
    pub(super) async fn fetch_checkpoint(
        &self,
        call: &Call,
        descriptor: &Descriptor,
    ) -> Result<TempDir, Status> {
        if descriptor.media_type != IMAGE {
            let text = format!("unsupported checkpoint type {:?}", descriptor.media_type);
            return Err(Status::unknown(text));
        }
        let dir = temporary_dir()?;
        let tar = temporary_dir()?;
        let file = tar.path().join("image.tar");
        self.containerd.read_blob(&call.scope, &descriptor.digest, &file).await?;
        let into = dir.path().to_path_buf();
        blocking(move || unpack(&file, &into)).await?;
        Ok(dir)
    }
}

fn temporary_dir() -> Result<TempDir, Status> {
    tempfile::Builder::new()
        .prefix("ctrd-checkpoint")
        .tempdir()
        .map_err(|error| Status::internal(format!("directory for a checkpoint: {error}")))
}

async fn blocking(
    work: impl FnOnce() -> Result<(), Status> + Send + 'static,
) -> Result<(), Status> {
    spawn_blocking(work).await.unwrap_or_else(|_| Err(Status::internal("work was cut off")))
}

fn pack(dir: &Path, into: &PathBuf) -> Result<(), Status> {
    let write = || {
        let mut builder = tar::Builder::new(std::fs::File::create(into)?);
        builder.follow_symlinks(false);
        builder.append_dir_all(".", dir)?;
        builder.into_inner()?.sync_all()
    };
    write().map_err(|error| failed("pack", dir, &error))
}

/// The crate unpacks nothing outside of `into`, whatever the names and links in the tar.
fn unpack(file: &Path, into: &Path) -> Result<(), Status> {
    let read = || {
        let mut archive = tar::Archive::new(std::fs::File::open(file)?);
        archive.set_preserve_permissions(true);
        archive.unpack(into)
    };
    read().map_err(|error| failed("unpack", into, &error))
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Status {
    Status::internal(format!("{what} checkpoint {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_same_after_packing_and_unpacking() {
        let from = temporary_dir().unwrap();
        std::fs::write(from.path().join("pages-1.img"), b"pages").unwrap();
        std::fs::create_dir(from.path().join("sub")).unwrap();
        std::fs::write(from.path().join("sub/core.img"), b"core").unwrap();
        let tar = temporary_dir().unwrap();
        let file = tar.path().join("t");
        pack(from.path(), &file).unwrap();
        let into = temporary_dir().unwrap();
        unpack(&file, into.path()).unwrap();
        assert_eq!(std::fs::read(into.path().join("pages-1.img")).unwrap(), b"pages");
        assert_eq!(std::fs::read(into.path().join("sub/core.img")).unwrap(), b"core");
    }
}
