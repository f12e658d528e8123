//! A root filesystem of one static busybox: nothing is fetched, nothing of the host is shared.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_shim_protos::api::Mount;

use crate::failure::{Context, Result};
use crate::paths;

/// Where runtimes mount things, and where programs expect to write.
const DIRECTORIES: [&str; 8] = ["bin", "dev", "etc", "proc", "root", "sys", "tmp", "var"];

/// Makes the tree below `dir`: busybox, a link to it for every applet it has, users, and empty mount points.
///
/// # Errors
/// When busybox is missing or a file cannot be written.
pub fn make(dir: &Path) -> Result {
    for name in DIRECTORIES {
        fs::create_dir_all(dir.join(name))
            .context(format!("making {name} in {}", dir.display()))?;
    }
    fs::set_permissions(dir.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    let busybox = paths::busybox()?;
    fs::copy(&busybox, dir.join("bin/busybox"))
        .context(format!("copying {}", busybox.display()))?;
    let list = Command::new(&busybox).arg("--list").output().context("busybox --list")?;
    for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", dir.join("bin").join(applet)).context(format!("linking {applet}"))?;
    }
    fs::write(
        dir.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n",
    )?;
    fs::write(dir.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    Ok(())
}

/// A mount as a snapshotter asks for it.
#[must_use]
pub fn mount(kind: &str, source: &str, options: &[&str]) -> Mount {
    let mut mount = Mount::new();
    (mount.type_, mount.source) = (kind.to_owned(), source.to_owned());
    mount.options = options.iter().map(|&option| option.to_owned()).collect();
    mount
}

/// The same at a target below the root.
#[must_use]
pub fn mount_at(target: &str, kind: &str, source: &str, options: &[&str]) -> Mount {
    let mut mount = mount(kind, source, options);
    target.clone_into(&mut mount.target);
    mount
}

/// What is mounted on and below a directory of the host: where, seen from there, and with which options, in the order in
/// which it came.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn mounted(dir: &Path) -> Result<Vec<(PathBuf, Vec<String>)>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let below = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let (point, options) = (Path::new(fields.next()?), fields.next()?);
        let point = point.strip_prefix(dir).ok()?.to_path_buf();
        Some((point, options.split(',').map(str::to_owned).collect()))
    };
    Ok(table.lines().filter_map(below).collect())
}
