//! Waiting for a condition. A deadline here only finds a hang: no test passes or fails by how long something took.

use std::process::Output;
use std::time::{Duration, Instant};

use tokio::process::Command;

use crate::failure::{Context, Failure, Result};

/// Longer than anything that works takes on a machine that builds and tests at the same time.
pub const HANG: Duration = Duration::from_secs(60);

/// Between two looks: short enough not to slow a test down, long enough not to take the processor from what is tested.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until `condition` gives a value.
///
/// # Errors
/// After `limit`, with `what` was waited for.
pub async fn until_some<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if start.elapsed() > limit {
            return Err(Failure::new(format!("{what}: not within {limit:?}")));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until `condition` holds.
///
/// # Errors
/// After `limit`, with `what` was waited for.
pub async fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) -> Result<()> {
    until_some(what, limit, || condition().then_some(())).await
}

/// As [`until_some`], outside of an async runtime.
///
/// # Errors
/// After `limit`, with `what` was waited for.
pub fn until_some_blocking<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if start.elapsed() > limit {
            return Err(Failure::new(format!("{what}: not within {limit:?}")));
        }
        std::thread::sleep(LOOK);
    }
}

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be run, or does not come to its end.
pub async fn ended(mut command: Command) -> Result<Output> {
    let run = tokio::time::timeout(HANG, command.output()).await;
    let output = run.map_err(|_| Failure::new(format!("{:?} hangs", command.as_std())))?;
    output.context(format!("{:?}", command.as_std()))
}
