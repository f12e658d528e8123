//! Getting rid of a shim that will not be used, or does not answer.

use std::{path::Path, time::Duration};

use runtime_proto::{bootstrap::Bootstrap, task::ShutdownRequest, types::Empty};
use tokio::time::timeout;

use super::ShimManager;
use crate::{
    bundle::Bundle,
    client::TaskClient,
    config::Timeouts,
    id::Key,
    procfs, socket_file,
    stray::{self, Seen},
};

/// For asking a shim that is unwanted to go; the next means is a signal.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

impl ShimManager {
    /// Ends what `start` has left in a bundle that will not be used: by request, if its address
    /// is known and it listens to reason, then by force. What others use is let be.
    pub(crate) async fn abandon(
        &self,
        bundle: &Bundle,
        binary: Option<&Path>,
        location: Option<&Bootstrap>,
    ) {
        match location {
            None => stray::make_sure(bundle, binary, None, &self.users).await,
            Some(location) if self.users.any(&location.address) => {}
            Some(location) => {
                let seen = Seen { address: location.address.clone(), at: procfs::now() };
                farewell(bundle.key(), location).await;
                self.bury(bundle, binary, Some(seen)).await;
                self.remove_socket(location).await;
            }
        }
    }

    /// Makes sure that a shim which does not answer is gone, unless others use its process.
    pub(crate) async fn bury(&self, bundle: &Bundle, binary: Option<&Path>, seen: Option<Seen>) {
        if seen.as_ref().is_some_and(|seen| self.users.any(&seen.address)) {
            return;
        }
        stray::make_sure(bundle, binary, seen, &self.users).await;
    }

    /// Removes the socket of a shim that is gone, unless others use it.
    pub(crate) async fn remove_socket(&self, location: &Bootstrap) {
        if !self.users.any(&location.address) {
            socket_file::remove_of_ended(&location.address).await;
        }
    }
}

/// Asks an unwanted shim to go. Its version may be one we do not know; the request has not changed
/// since v2.
pub(crate) async fn farewell(key: &Key, location: &Bootstrap) {
    let known = Bootstrap { version: runtime_proto::bootstrap::MAX_VERSION, ..location.clone() };
    let Ok(client) = TaskClient::connect(&known, &key.namespace, FAREWELL_TIMEOUT).await else {
        return;
    };
    let mut request = ShutdownRequest::new();
    request.id = key.id.to_string();
    request.now = true;
    let asked = client.first::<_, Empty>("Shutdown", &request, Some(FAREWELL_TIMEOUT)).await;
    if asked.is_ok() {
        // The answer comes before the end; if that takes longer, force follows.
        let _ = timeout(Timeouts::default().shutdown, client.closed()).await;
    }
    client.close();
}
