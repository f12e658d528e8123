//! First stage: there is a bundle.

use std::{path::PathBuf, sync::Arc, time::Duration};

use runtime_proto::{
    bootstrap::{Bootstrap, MAX_VERSION, Protocol},
    errdefs::Code,
};

use super::{Caller, CreateOptions, Endpoint, gone, launched::Launched, stale};
use tokio::time::timeout;

use crate::{
    activation::{self, Activation},
    bundle::Bundle,
    error::{Error, Result},
    features,
    id::Key,
    shim::Shim,
    shim_manager::Reservation,
    stores::look,
    task_manager::Inner,
};

/// For a `start` whose caller went away: it takes milliseconds, and when it has ended it is known
/// what there is to undo. One that is cut off has to be searched for.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// A bundle, and nothing that runs.
pub(super) struct Bundled {
    pub(super) inner: Arc<Inner>,
    pub(super) reservation: Reservation,
    pub(super) options: CreateOptions,
    pub(super) binary: PathBuf,
    bundle: Bundle,
    pub(super) mounted: Mounted,
}

/// Whether mounts are made, as far as it is known: one that is cut off may have made some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mounted {
    /// None that would be ours to undo.
    No,
    /// They may be.
    Perhaps,
}

impl Bundled {
    /// Makes the bundle. What is wrong with the request shows before anything is made.
    pub(super) async fn new(
        inner: Arc<Inner>,
        reservation: Reservation,
        options: CreateOptions,
    ) -> Result<Self> {
        let key = reservation.key().clone();
        let binary = inner
            .shims
            .resolve(&options.runtime)
            .map_err(|error| error.within(format!("create task {key}")))?;
        let shim = inner.shims.binary(&binary);
        features::check(&key, options.spec.as_ref(), &shim, options.options()).await?;
        let bundle = match make_bundle(&inner, &key, &options).await {
            Err(error) if error.kind() == Code::AlreadyExists => {
                stale::heal(&inner, &key, &binary).await?;
                make_bundle(&inner, &key, &options).await
            }
            other => other,
        };
        let bundle = bundle.map_err(|error| error.within(format!("create task {key}")))?;
        tracing::debug!("bundle made");
        Ok(Self { inner, reservation, options, binary, bundle, mounted: Mounted::No })
    }

    /// Starts a shim, or joins that of the sandbox.
    pub(super) async fn launch(mut self, caller: &mut Caller) -> Result<Launched> {
        let key = self.reservation.key().clone();
        let started = {
            let starting = self.shim();
            tokio::pin!(starting);
            tokio::select! {
                started = &mut starting => started.map(|shim| (shim, false)),
                () = caller.gone() => match timeout(SETTLE_TIMEOUT, starting).await {
                    Ok(started) => started.map(|shim| (shim, true)),
                    Err(_) => Err(gone(&key)),
                },
            }
        };
        match started {
            Ok((shim, false)) => Ok(Launched::new(self, shim)),
            Ok((shim, true)) => Err(Launched::new(self, shim).undo(gone(&key)).await),
            Err(error) => Err(self.undo(error).await),
        }
    }

    async fn shim(&mut self) -> Result<Shim> {
        let mounts = std::mem::take(&mut self.options.rootfs);
        let activator = &*self.inner.environment.mounts;
        self.mounted = Mounted::Perhaps;
        let activated = activation::activate(activator, self.reservation.key(), mounts).await;
        let Activation { left, made } = activated.inspect_err(|_| self.mounted = Mounted::No)?;
        self.options.rootfs = left;
        if !made {
            self.mounted = Mounted::No;
        }
        let shims = &self.inner.shims;
        if let Some(sandbox) = &self.options.sandbox
            && let Some(location) = self.sandbox_location(sandbox).await?
            && location.version >= MAX_VERSION
        {
            return shims.join(self.bundle.clone(), &self.binary, sandbox, location).await;
        }
        shims.start(self.bundle.clone(), &self.binary, self.options.options()).await
    }

    /// Where the sandbox's shim is; none if there is no such sandbox, as for clients that use the
    /// field as a mere label.
    async fn sandbox_location(&self, sandbox: &str) -> Result<Option<Bootstrap>> {
        let own = self.reservation.key();
        let key = Key::new(own.namespace.as_str(), sandbox)?;
        if !look(self.inner.environment.sandboxes.contains(&key)).await? {
            tracing::warn!(namespace = %own.namespace, id = %own.id, %sandbox, "no such sandbox");
            return Ok(None);
        }
        if let Some(endpoint) = &self.options.endpoint {
            return location(endpoint).map(Some);
        }
        let shim = self.inner.shims.get(&key).ok_or_else(|| {
            let text = format!("create task {own}: can't find shim for sandbox {sandbox}");
            Error::new(Code::NotFound, text)
        })?;
        Ok(Some(shim.location()))
    }

    /// Undoes the stage. A `start` that was cut off may have left a process, which is looked for;
    /// one that ended by itself was cleaned up behind already.
    async fn undo(self, error: Error) -> Error {
        self.inner.shims.abandon(&self.bundle, Some(&self.binary), None).await;
        remove(&self.inner, &self.bundle, self.mounted).await;
        error
    }
}

async fn make_bundle(inner: &Inner, key: &Key, options: &CreateOptions) -> Result<Bundle> {
    let (config, spec) = (inner.shims.config().clone(), options.spec.clone());
    let place = Bundle::at(&config, key.clone());
    place.blocking(move |place| Bundle::create(&config, place.key().clone(), spec.as_ref())).await
}

/// Removes the bundle and the mounts of something that never was.
pub(super) async fn remove(inner: &Inner, bundle: &Bundle, mounted: Mounted) {
    let removed = bundle.blocking(|bundle| {
        bundle.forget_shim();
        bundle.remove()
    });
    if let Err(error) = removed.await {
        // The next create of this id finds it stale, and so does the next start.
        tracing::error!(namespace = %bundle.key().namespace, id = %bundle.key().id, %error, "a bundle stays");
    }
    if mounted == Mounted::Perhaps {
        activation::deactivate(&*inner.environment.mounts, bundle.key()).await;
    }
}

/// `ttrpc+unix:///run/…`, as sandbox records have it.
fn location(endpoint: &Endpoint) -> Result<Bootstrap> {
    let (protocol, address) = match endpoint.address.split_once('+') {
        Some(("ttrpc", address)) => (Protocol::Ttrpc, address),
        Some(("grpc", address)) => (Protocol::Grpc, address),
        Some((other, _)) if !other.contains(['/', ':']) => {
            let text = format!("sandbox endpoint {:?}: unknown protocol", endpoint.address);
            return Err(Error::new(Code::InvalidArgument, text));
        }
        _ => (Protocol::Ttrpc, endpoint.address.as_str()),
    };
    let location = Bootstrap { version: endpoint.version, address: address.to_owned(), protocol };
    location.supported().map_err(|error| {
        let context = format!("sandbox endpoint {:?}", endpoint.address);
        Error::caused(Code::Unimplemented, context, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_with_and_without_a_protocol() {
        let read =
            |address: &str, version| location(&Endpoint { address: address.into(), version });
        assert_eq!(read("ttrpc+unix:///a", 3).unwrap(), Bootstrap::ttrpc(3, "unix:///a"));
        assert_eq!(read("unix:///a+b", 2).unwrap(), Bootstrap::ttrpc(2, "unix:///a+b"));
        assert_eq!(read("grpc+/a", 3).unwrap().protocol, Protocol::Grpc);
        assert_eq!(read("http+unix:///a", 3).unwrap_err().kind(), Code::InvalidArgument);
        assert_eq!(read("ttrpc+unix:///a", 4).unwrap_err().kind(), Code::Unimplemented);
    }
}
