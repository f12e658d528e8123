//! Readiness and end, told to systemd: sd_notify(3) is one datagram.

use std::{
    env, io,
    os::linux::net::SocketAddrExt,
    os::unix::net::{SocketAddr, UnixDatagram},
};

/// The daemon serves.
pub(crate) const READY: &str = "READY=1";
/// The daemon has begun to stop.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Tells the service manager, if one listens. It is never needed, so failure is only logged.
pub(crate) fn notify(state: &str) {
    if let Err(error) = send(state) {
        tracing::warn!(%error, state, "the service manager cannot be told");
    }
}

fn send(state: &str) -> io::Result<()> {
    let Some(address) = env::var("NOTIFY_SOCKET").ok().filter(|address| !address.is_empty()) else {
        return Ok(());
    };
    let address = match address.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&address)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
