//! What a shim binary wants on stdin of `start`.
//!
//! Since 2.3 containerd sends `BootstrapParams`; before, it sent an `Any` of runtime options, or
//! nothing. A shim made from containerd's Go package before 2.3 misreads the parameters: up to 1.6
//! `start` fails, from 1.7 to 2.2 they are dropped in silence, and `ShimCgroup` with them. The
//! newest shims in turn refuse an `Any`. So the binary is asked, once, which era it is from: all
//! shims of that Go package print the version of the package at `-v`, in a form of its own.
//! Whatever does not, gets what the newest containerd sends to everybody; so do, as there, the
//! names of the v1 shims the `Any`.

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::process::Run;

/// `-v` prints a few lines; the limit only keeps an odd binary from holding up a create.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The first version of containerd whose shims take parameters.
const FIRST_WITH_PARAMS: (u32, u32) = (2, 3);

/// Binaries that never take parameters (containerd core/runtime/v2/binary.go).
const V1_NAMES: [&str; 2] = ["shim-runc-v1", "shim-runhcs-v1"];

/// What is sent on stdin of `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// An `Any` of runtime options, or nothing.
    Options,
    /// `BootstrapParams`.
    Params,
}

/// The eras of the binaries seen so far.
#[derive(Debug, Default)]
pub(crate) struct Eras {
    /// By what the file is now, so that a package upgrade is noticed. A plain lock, held for
    /// lookups only.
    known: Mutex<HashMap<PathBuf, (Identity, Era)>>,
}

/// What tells a file from the one that was there before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Eras {
    /// The era of a binary, asked if it is not known.
    pub(crate) async fn of(&self, binary: &Path) -> Era {
        if V1_NAMES.iter().any(|name| {
            binary.file_name().is_some_and(|file| file.to_string_lossy().contains(name))
        }) {
            return Era::Options;
        }
        let identity = identity(binary);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(binary).copied();
        if let (Some(identity), Some((seen, era))) = (identity, known)
            && identity == seen
        {
            return era;
        }
        let era = ask(binary).await;
        tracing::debug!(binary = %binary.display(), ?era, "asked a shim binary for its era");
        if let Some(identity) = identity {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(binary.to_path_buf(), (identity, era));
        }
        era
    }
}

fn identity(binary: &Path) -> Option<Identity> {
    let meta = binary.metadata().ok()?;
    Some(Identity {
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.size(),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

async fn ask(binary: &Path) -> Era {
    let mut run = Run::new(binary, PROBE_TIMEOUT);
    run.args.push("-v".into());
    match run.output().await {
        Ok((status, output)) if status.success() => {
            from_version(&String::from_utf8_lossy(&output.stdout))
        }
        // `start` will say what is wrong with it.
        _ => Era::Params,
    }
}

/// Reads the answer of `-v`:
///
/// ```text
/// containerd-shim-runc-v2:
///   Version:  2.1.9
///   Revision: 1c4457e
///   Go version: go1.24
/// ```
fn from_version(text: &str) -> Era {
    let field =
        |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
    let version = match (field("Version:"), field("Go version:")) {
        (Some(version), Some(_)) => release(version),
        _ => None,
    };
    match version {
        Some(version) if version < FIRST_WITH_PARAMS => Era::Options,
        _ => Era::Params,
    }
}

/// Major and minor of `v2.1.9`, `1.6.20~ds1` and the like.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn of_go(version: &str) -> Era {
        let lines = format!("  Version:  {version}\n  Revision: 5b842e5\n  Go version: go1.24\n\n");
        from_version(&format!("containerd-shim-runc-v2:\n{lines}"))
    }

    #[test]
    fn go_shims_are_told_by_the_version_of_their_package() {
        for old in ["1.6.20~ds1", "v1.7.34", "1.7.24~ds1", "2.0.11", "2.1.9+unknown", "v2.2.7"] {
            assert_eq!(of_go(old), Era::Options, "{old}");
        }
        for new in ["2.3.0", "v2.3.4", "2.4.0-beta.0-5-g301026e", "v10.0.0", "unknown", ""] {
            assert_eq!(of_go(new), Era::Params, "{new}");
        }
    }

    #[test]
    fn others_get_what_the_newest_containerd_sends() {
        for other in ["", "shim 0.1.0\n", "x:\n  Version: 0.1.0\n  Revision: y\n", "\0\u{7f}"] {
            assert_eq!(from_version(other), Era::Params, "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_binary_is_asked_once_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (binary, asked) = (dir.path().join("shim"), dir.path().join("asked"));
        let install = |version: &str| {
            let fresh = dir.path().join("fresh");
            let script = format!(
                "#!/bin/sh\necho x >> {}\nprintf 'x:\\n  Version: {version}\\n  Go version: go1\\n'\n",
                asked.display()
            );
            fs::write(&fresh, script).unwrap();
            fs::set_permissions(&fresh, PermissionsExt::from_mode(0o755)).unwrap();
            fs::rename(&fresh, &binary).unwrap();
        };
        let eras = Eras::default();
        install("1.7.2");
        assert_eq!(eras.of(&binary).await, Era::Options);
        assert_eq!(eras.of(&binary).await, Era::Options);
        assert_eq!(fs::read_to_string(&asked).unwrap(), "x\n");
        install("2.3.4");
        assert_eq!(eras.of(&binary).await, Era::Params);
        assert_eq!(fs::read_to_string(&asked).unwrap(), "x\nx\n");
    }

    #[tokio::test]
    async fn shims_of_v1_are_known_by_name_and_a_hopeless_binary_is_not_an_error() {
        let eras = Eras::default();
        assert_eq!(eras.of(Path::new("/x/containerd-shim-runc-v1")).await, Era::Options);
        assert_eq!(eras.of(Path::new("/nonexistent")).await, Era::Params);
        assert_eq!(eras.of(Path::new("/bin/false")).await, Era::Params);
    }
}
