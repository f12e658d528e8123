//! Metrics, fetched as Prometheus does.

use std::net::{SocketAddr, TcpListener};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::deadline::HANG;
use crate::failure::{Failure, Result};

/// An address for whoever is to serve them. Free at this moment, which has to do: it takes a number, not a socket.
///
/// # Errors
/// When there is none.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// The page, head and all.
///
/// # Errors
/// When it is not served.
pub async fn fetch(address: SocketAddr) -> Result<String> {
    let fetch = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: m\r\n\r\n").await?;
        let mut page = String::new();
        stream.read_to_string(&mut page).await?;
        Ok::<_, Failure>(page)
    };
    let limited = tokio::time::timeout(HANG, fetch).await;
    limited.map_err(|_| Failure::new("metrics are not served"))?
}

/// The value of one, if there is one.
#[must_use]
pub fn value(page: &str, name: &str) -> Option<f64> {
    let name = format!("containerd_task_manager_{name} ");
    page.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok())
}
