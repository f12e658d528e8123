//! Why a setting is refused.

use std::{fmt, io, path::PathBuf};

/// A setting that cannot work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no TOML, or has settings that there are not.
    #[error("{}", .path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot be used.
    #[error("{setting}: {why}")]
    Invalid {
        /// Its name.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// What the library would refuse.
    #[error(transparent)]
    Library(#[from] runtime_v2::Error),
}

/// A refusal of a value, by the name of its setting.
pub(super) fn invalid(setting: &'static str, why: impl fmt::Display) -> ConfigError {
    ConfigError::Invalid { setting, why: why.to_string() }
}
