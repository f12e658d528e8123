//! Which stream goes where: a request's three strings, read and checked before anything is opened.

use std::path::PathBuf;

use runtime_proto::errdefs::Code;

use super::uri::{LoggingUri, Target};
use crate::error::{Error, Result};

/// The decision for one process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What is fed to the process, if anything.
    pub(crate) stdin: Option<PathBuf>,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    /// The logging binary behind every [`Output::Logger`].
    pub(crate) logger: Option<LoggingUri>,
}

/// Where one output stream goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Null,
    /// An existing fifo or file.
    Path(PathBuf),
    /// A log file to create.
    File(PathBuf),
    /// The logging binary.
    Logger,
}

impl Plan {
    /// Reads the three fields. A terminal has one output, so its stderr field means nothing. A
    /// logging binary named by stdout takes stderr as well, whatever that field says: the logger
    /// protocol hands over both (containerd cmd/containerd-shim-runc-v2/process/io.go).
    pub(crate) fn new(stdin: &str, stdout: &str, stderr: &str, terminal: bool) -> Result<Self> {
        let stdin = match Target::parse(stdin).map_err(|error| error.within("stdin"))? {
            Target::Null => None,
            Target::Path(path) | Target::File(path) => Some(path),
            Target::Binary(_) => {
                return Err(Error::new(
                    Code::InvalidArgument,
                    "stdin cannot come from a logging binary",
                ));
            }
        };
        let stdout = Target::parse(stdout).map_err(|error| error.within("stdout"))?;
        if let Target::Binary(logger) = stdout {
            let stderr = if terminal { Output::Null } else { Output::Logger };
            return Ok(Self { stdin, stdout: Output::Logger, stderr, logger: Some(logger) });
        }
        let mut logger = None;
        let stdout = Output::from_target(stdout, &mut logger);
        let stderr = if terminal {
            Output::Null
        } else {
            let target = Target::parse(stderr).map_err(|error| error.within("stderr"))?;
            Output::from_target(target, &mut logger)
        };
        Ok(Self { stdin, stdout, stderr, logger })
    }
}

impl Output {
    fn from_target(target: Target, logger: &mut Option<LoggingUri>) -> Self {
        match target {
            Target::Null => Self::Null,
            Target::Path(path) => Self::Path(path),
            Target::File(path) => Self::File(path),
            Target::Binary(uri) => {
                *logger = Some(uri);
                Self::Logger
            }
        }
    }
}
