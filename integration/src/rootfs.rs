//! A root filesystem of one static busybox: nothing is fetched, nothing of the host is shared.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

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
