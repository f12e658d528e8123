//! Getting a shim: by running its binary, or by joining that of a sandbox.

use std::{path::Path, time::Duration};

use runtime_proto::{bootstrap::Bootstrap, errdefs::Code, types::Any};

use super::ShimManager;
use crate::{
    bundle::{Bundle, Origin},
    client::TaskClient,
    error::{Error, Result},
    shim::{Parts, Shim},
    shim_log::ShimLog,
};

/// For a shim that has just said where it is. One in a virtual machine may still be booting; a
/// local one answers at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(100);

impl ShimManager {
    /// Starts a shim in a bundle and connects to it. What was started is ended again if anything
    /// about that fails; the bundle is the caller's.
    ///
    /// # Errors
    /// With what the shim itself said, where it said something.
    pub async fn start(
        &self,
        bundle: Bundle,
        binary: &Path,
        options: Option<&Any>,
    ) -> Result<Shim> {
        let mut answer = None;
        match self.start_steps(&bundle, binary, options, &mut answer).await {
            Ok(shim) => Ok(shim),
            Err(error) => {
                self.abandon(&bundle, Some(binary), answer.as_ref()).await;
                Err(error.within(format!("failed to start shim of {}", bundle.key())))
            }
        }
    }

    async fn start_steps(
        &self,
        bundle: &Bundle,
        binary: &Path,
        options: Option<&Any>,
        answer: &mut Option<Bootstrap>,
    ) -> Result<Shim> {
        let key = bundle.key();
        // Noted first. Should this manager be killed from here on, the next one knows whose process
        // it is that works in the bundle, and what to run for `delete`.
        let noted = binary.to_path_buf();
        let log = bundle.blocking(move |bundle| {
            bundle.write_binary_path(&noted)?;
            bundle.log_fifo()
        });
        let log = ShimLog::open(&log.await?, key)?;
        tracing::debug!("starting the shim");
        let started = self.binary(binary).start(&self.eras, key, bundle.path(), options).await?;
        tracing::debug!("shim started");
        let location = answer.insert(started).clone().supported().map_err(|error| {
            Error::caused(Code::Unimplemented, binary.display().to_string(), error)
        })?;
        let client = TaskClient::connect(&location, &key.namespace, CONNECT_TIMEOUT).await?;
        tracing::debug!("shim connected");
        let written = location.clone();
        bundle.blocking(move |bundle| bundle.write_bootstrap(&written)).await?;
        tracing::debug!("shim noted");
        Ok(Shim::new(Parts {
            bundle: bundle.clone(),
            location,
            client,
            binary: Some(binary.to_path_buf()),
            origin: Origin::Started,
            log: Some(log),
            users: self.users(),
        }))
    }

    /// Connects a bundle to the shim of its sandbox, without running a binary. The binary is
    /// noted all the same: it cleans up when that shim dies.
    ///
    /// # Errors
    /// When nobody answers there, or the bundle cannot be written.
    pub async fn join(
        &self,
        bundle: Bundle,
        binary: &Path,
        sandbox: &str,
        location: Bootstrap,
    ) -> Result<Shim> {
        let key = bundle.key();
        let client = TaskClient::connect(&location, &key.namespace, CONNECT_TIMEOUT)
            .await
            .map_err(|error| error.within(format!("{key} joins sandbox {sandbox}")))?;
        // The sandbox may be gone before its last container.
        let ours = self.users.is_ours(&location.address);
        let origin = if ours { Origin::Shared } else { Origin::Joined };
        let (path, written, sandbox) = (binary.to_path_buf(), location.clone(), sandbox.to_owned());
        bundle
            .blocking(move |bundle| {
                bundle.write_sandbox(&sandbox, origin)?;
                bundle.write_binary_path(&path)?;
                bundle.write_address_as(&sandbox, &written)?;
                bundle.write_bootstrap(&written)
            })
            .await?;
        Ok(Shim::new(Parts {
            bundle,
            location,
            client,
            binary: Some(binary.to_path_buf()),
            origin,
            log: None,
            users: self.users(),
        }))
    }
}
