//! A bundle that is no entry and whose shim is dead: ending what that has left, and telling it in its place.

use std::path::PathBuf;

use runtime_proto::bootstrap::Bootstrap;

use crate::{
    bundle::{Bundle, EndNote, Origin},
    dead_shim::{self, Published},
    hearing::Told,
    stray::Seen,
    task_manager::Inner,
};

/// What a dead shim has left.
pub(crate) struct Dead {
    pub(crate) bundle: Bundle,
    /// What to run for `delete`, if that is known and there.
    pub(crate) binary: Option<PathBuf>,
    /// Where the shim was, if that was readable.
    pub(crate) location: Option<Bootstrap>,
    /// When that was read, as [`procfs::now`](crate::procfs::now) has it: whoever listens there and was started later is
    /// another.
    pub(crate) read_at: u64,
    /// Whether there can have been a task: a bundle that no shim was ever noted in had none.
    pub(crate) had_task: bool,
    /// How it came to its shim.
    pub(crate) origin: Origin,
}

impl Dead {
    /// Ends what the shim has left, and publishes the end of its task, if there was one: if the pid of its init is known, from
    /// the bundle or from `delete`. `telling` is called before that, if there is something to tell. The bundle stays.
    pub(crate) async fn bury(&self, inner: &Inner, telling: impl FnOnce()) -> Published {
        // A shim that does not answer may still be there.
        if self.origin.is_ours() {
            let seen = self
                .location
                .as_ref()
                .map(|location| Seen { address: location.address.clone(), at: self.read_at });
            inner.shims.bury(&self.bundle, self.binary.as_deref(), seen).await;
        }
        let read = self.bundle.blocking(|bundle| Ok((bundle.init_pid(), bundle.end())));
        let (pid, published) = read.await.unwrap_or_default();
        let found = match &self.binary {
            Some(path) => {
                let binary = inner.shims.binary(path);
                dead_shim::run_delete(inner, &binary, &self.bundle, pid).await
            }
            None => dead_shim::unknown_exit(pid),
        };
        // Not before: the `delete` of old shims wants to remove it itself, and fails without it.
        if let Some(location) = &self.location {
            inner.shims.remove_socket(location).await;
        }
        let told = published.map_or(Told::NONE, EndNote::told);
        let exit = published.map_or(found, Into::into);
        if !self.had_task || exit.pid == 0 {
            return Published::Out;
        }
        telling();
        dead_shim::publish(inner, &self.bundle, &exit, told).await
    }
}
