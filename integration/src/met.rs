//! Which versions of containerd a test has met: `make compatibility` makes a table of them.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use tokio::process::Command;

use crate::deadline;
use crate::failure::{Failure, Result};

/// What the containerd in a directory says its version is, without the `v` that some builds put before it.
///
/// # Errors
/// When it does not say.
pub async fn version(bin: &Path) -> Result<String> {
    let mut command = Command::new(bin.join("containerd"));
    command.arg("--version");
    let output = deadline::ended(command).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version =
        text.split_whitespace().nth(2).map(|word| word.trim_start_matches('v').to_owned());
    version.ok_or_else(|| Failure::new(format!("no version in {text:?}")))
}

/// Notes that this test has met this version, in the file that `MET` names.
///
/// # Errors
/// When that file cannot be written.
pub fn note(version: &str) -> Result {
    let Some(path) = std::env::var_os("MET") else { return Ok(()) };
    // "containers_e2e-0123456789abcdef"
    let me = std::env::current_exe()?;
    let name = me.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let theme = name.rsplit_once('-').map_or(name.as_str(), |(theme, _)| theme);
    let line = format!("{theme} {version}\n");
    let mut file = File::options().create(true).append(true).open(path)?;
    Ok(file.write_all(line.as_bytes())?)
}
