//! The configuration of a node's containerd. One text for both builds: version 3 of the format, which 2.x reads.

use std::path::{Path, PathBuf};

use super::standin;
use super::tools::{self, Build};
use crate::failure::Result;
use crate::fixture::Fixture;
use crate::paths;

/// The image of pods' first containers.
pub(super) const PAUSE: &str = "localhost/pause:test";

/// The handler of a runc that a test can hold up, where there is one: [`FakeRunc`](crate::fakerunc::FakeRunc).
pub const GATED: &str = "gated";

/// The name in the fixture's directory of programs that the manager is looked for under first.
pub const MANAGER: &str = "containerd-task-manager";

/// The text for `build` in `dir`.
///
/// Why some of it: hosts without the right to lower `oom_score_adj` (containers in containers) need it restricted; the
/// node resource interface and the directory for optional programs are a host's; network namespaces and the runtime's
/// root are the fixture's own, since all nodes of a host share the namespace `k8s.io`.
///
/// # Errors
/// When something that is named in it is missing.
pub(super) fn text(fixture: &Fixture, dir: &Path, build: Build) -> Result<String> {
    let plugins = tools::network_plugins()?;
    let bin_dirs = match build {
        Build::Stock => format!("bin_dir = \"{}\"", plugins.display()),
        Build::Ours => format!("bin_dirs = [\"{}\"]", plugins.display()),
    };
    let task = match build {
        Build::Stock => String::new(),
        Build::Ours => format!(
            "[plugins.\"io.containerd.runtime.v2.task\"]\nbinary = \"{}\"\nlog_level = \"debug\"\n",
            manager(fixture)?.display()
        ),
    };
    let (handlers, dir) = (handlers(fixture, dir)?, dir.display());
    Ok(format!(
        r#"version = 3
root = "{dir}/root"
state = "{dir}/state"
temp = "{dir}/temp"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
]
[grpc]
address = "{dir}/c.sock"
[ttrpc]
address = "{dir}/c.sock.ttrpc"
[debug]
level = "info"
[plugins."io.containerd.nri.v1.nri"]
disable = true
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "rust"
[plugins."io.containerd.cri.v1.runtime".cni]
conf_dir = "{dir}/cni"
{bin_dirs}
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"
{handlers}{task}"#
    ))
}

/// The section of runtime handlers.
const RUNTIMES: &str = "plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes";

/// The sections of all handlers: our shim's and Go's, and those of stand-ins that the fixture has.
fn handlers(fixture: &Fixture, dir: &Path) -> Result<String> {
    let runc = fixture.bin().join("runc");
    let mut handlers = vec![
        runc_handler("rust", &paths::shim()?, &runc, dir),
        runc_handler("go", &go_shim()?, &runc, dir),
    ];
    let gated = fixture.bin().join("fakerunc");
    if gated.exists() {
        handlers.push(runc_handler(GATED, &paths::shim()?, &gated, dir));
    }
    if fixture.bin().join(standin::BINARY).exists() {
        handlers.push(format!(
            "[{RUNTIMES}.{}]\nruntime_type = \"{}\"\nsandboxer = \"shim\"\n",
            standin::HANDLER,
            standin::RUNTIME
        ));
    }
    Ok(handlers.concat())
}

/// A handler with a shim for runc, or for what stands in for it.
fn runc_handler(name: &str, shim: &Path, runc: &Path, dir: &Path) -> String {
    format!(
        "[{RUNTIMES}.{name}]\nruntime_type = \"io.containerd.runc.v2\"\nruntime_path = \"{}\"\n\
         [{RUNTIMES}.{name}.options]\nBinaryName = \"{}\"\nRoot = \"{}\"\n",
        shim.display(),
        runc.display(),
        dir.join("runc").display(),
    )
}

/// The task manager, or what a test has put into its place.
fn manager(fixture: &Fixture) -> Result<PathBuf> {
    let placed = fixture.bin().join(MANAGER);
    if placed.is_symlink() || placed.exists() { Ok(placed) } else { paths::manager() }
}

/// Upstream's own shim, of the stock build.
fn go_shim() -> Result<PathBuf> {
    Ok(Build::Stock.dir()?.join("containerd-shim-runc-v2"))
}
