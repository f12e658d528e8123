//! Mounts that a program makes: FUSE filesystems named as `fuse.<kind>` or `fuse3.<kind>`.

use std::ffi::OsString;
use std::path::Path;

use runtime_proto::errdefs::Code;

use super::Mount;
use crate::error::{Error, Result};

/// Runs the programs that make mounts.
///
/// The caller gives it, because children are waited for in one place of a shim only.
pub trait MountHelper {
    /// Runs `program` with `arguments` to its end. It is an error if it fails.
    ///
    /// # Errors
    /// When the program cannot be started, or says that it failed; with what it printed.
    fn run(&self, program: &str, arguments: &[OsString]) -> Result<()>;
}

/// Has no programs: filesystems that need one are refused.
#[derive(Debug, Clone, Copy)]
pub struct NoHelper;

impl MountHelper for NoHelper {
    fn run(&self, program: &str, _arguments: &[OsString]) -> Result<()> {
        Err(Error::new(Code::Unimplemented, format!("mounting by {program} is not supported")))
    }
}

/// The program for a filesystem type, and the kind of filesystem it is told; `None` if the kernel
/// mounts this type itself.
pub(super) fn program_for(fs_type: &str) -> Option<(&'static str, &str)> {
    let fuse3 = fs_type.strip_prefix("fuse3.").map(|kind| ("mount.fuse3", kind));
    fuse3.or_else(|| fs_type.strip_prefix("fuse.").map(|kind| ("mount.fuse", kind)))
}

/// The command line of such a program.
pub(super) fn arguments(mount: &Mount, kind: &str, target: &Path) -> Vec<OsString> {
    let mut arguments = vec![mount.source.clone().into(), target.into()];
    for option in &mount.options {
        arguments.extend(["-o".into(), option.into()]);
    }
    arguments.extend(["-t".into(), kind.into()]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_names_the_program_and_the_kind() {
        assert_eq!(program_for("fuse3.fuse-overlayfs"), Some(("mount.fuse3", "fuse-overlayfs")));
        assert_eq!(program_for("fuse.sshfs"), Some(("mount.fuse", "sshfs")));
        for kernels in ["overlay", "fuse", "fuseblk", ""] {
            assert_eq!(program_for(kernels), None);
        }
    }

    #[test]
    fn the_command_line_is_that_of_a_mount_helper() {
        let mount = Mount {
            type_: "fuse3.x".into(),
            source: "src".into(),
            options: vec!["ro".into(), "a=b".into()],
            ..Mount::default()
        };
        let arguments = arguments(&mount, "x", Path::new("/t"));
        assert_eq!(arguments, ["src", "/t", "-o", "ro", "-o", "a=b", "-t", "x"]);
    }

    #[test]
    fn without_programs_the_error_is_typed() {
        let error = NoHelper.run("mount.fuse3", &[]).unwrap_err();
        assert_eq!(error.kind(), Code::Unimplemented);
    }
}
