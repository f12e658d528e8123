//! Logs go to stderr, where service managers collect them.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
    fmt,
};

use crate::config::LogFormat;

/// The crates a bare level is for; HTTP/2 logs every frame at debug.
const OWN: [&str; 2] = ["containerd_task_manager", "runtime_v2"];

/// A bare level as a filter; anything else is one already.
fn directives(level: &str) -> String {
    if level.parse::<LevelFilter>().is_err() {
        return level.to_owned();
    }
    let own: Vec<_> = OWN.iter().map(|name| format!("{name}={level}")).collect();
    format!("warn,{}", own.join(","))
}

/// Starts to log.
///
/// # Errors
/// When `level` is neither a level nor a filter.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(directives(level))?;
    let lines = fmt::Subscriber::builder().with_env_filter(filter).with_writer(stderr);
    match format {
        LogFormat::Json => lines.json().flatten_event(true).init(),
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).with_target(false).init(),
    }
    Ok(())
}
