//! Logs go to stderr, where service managers collect them.

use std::{
    fmt,
    io::{IsTerminal, stderr},
};

use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
    fmt::Subscriber,
};

use crate::config::LogFormat;

/// Changes how much is logged, while it is.
pub(crate) struct Verbosity(Box<dyn Fn(EnvFilter) + Send + Sync>);

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbosity")
    }
}

impl Verbosity {
    /// From here on, what is only of use to who looks for a fault is logged too.
    pub(crate) fn debug(&self) {
        if let Ok(filter) = EnvFilter::builder().parse(directives("debug")) {
            (self.0)(filter);
        }
    }
}

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
pub(crate) fn start(level: &str, format: LogFormat) -> Result<Verbosity, ParseError> {
    let filter = EnvFilter::builder().parse(directives(level))?;
    let lines = Subscriber::builder().with_env_filter(filter).with_writer(stderr);
    // The two formats are two types of subscribers, and so are their handles.
    macro_rules! begin {
        ($lines:expr) => {{
            let lines = $lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            // Fails only if the subscriber is gone, which is there until the process ends.
            Ok(Verbosity(Box::new(move |filter| drop(handle.reload(filter)))))
        }};
    }
    match format {
        LogFormat::Json => begin!(lines.json().flatten_event(true)),
        LogFormat::Text => begin!(lines.with_ansi(stderr().is_terminal()).with_target(false)),
    }
}
