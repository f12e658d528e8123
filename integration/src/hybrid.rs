//! crun on a host that has both cgroup versions.
//!
//! Where v1 hierarchies are mounted and a v2 one beside them, crun refuses to run as long as v2 still has a controller.
//! The kernel moves a controller to v1 when a v1 hierarchy with it is mounted, for the whole machine. So this is done
//! once per test process, on purpose, and undone when the last such process ends; a file with the pids of those that
//! need it says who that is.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};

use crate::deadline::{HANG, until_some_blocking};
use crate::failure::{Context, Failure, Result};
use crate::shim::is_alive;

const PLACE: &str = "/run/cgroup-for-crun";

/// Makes crun usable on a hybrid host, until this process ends. On other hosts it does nothing.
///
/// # Errors
/// When a controller in v2 cannot be moved.
pub fn free_unified_hierarchy() -> Result {
    static FREED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    let freed = FREED.get_or_init(|| {
        let Some(unified) = unified_beside_v1() else { return Ok(()) };
        hold(&unified).map_err(|failure| failure.to_string())
    });
    freed.clone().map_err(Failure::new)
}

/// The newest runc and crun at hand, each with its name, and each usable on this host: for what they say or do
/// differently.
///
/// # Errors
/// When one is missing, or crun cannot be made usable.
pub fn both_runtimes() -> Result<[(&'static str, PathBuf); 2]> {
    free_unified_hierarchy()?;
    Ok([("runc", crate::paths::runc()?), ("crun", crate::paths::crun()?)])
}

fn hold(unified: &Path) -> Result {
    let lock = lock()?;
    let mut users = users();
    for controller in controllers(unified)? {
        let point = Path::new(PLACE).join(&controller);
        fs::create_dir_all(&point)?;
        let data = Some(controller.as_str());
        let mount = || mount(Some("none"), &point, Some("cgroup"), MsFlags::empty(), data);
        // Busy while the kernel takes apart what was unmounted last.
        let decided = || Some(mount()).filter(|outcome| *outcome != Err(Errno::EBUSY));
        let outcome = until_some_blocking("a controller that is free", HANG, decided)?;
        outcome.context(format!("moving the controller {controller} to v1"))?;
    }
    users.insert(std::process::id());
    write(&users)?;
    drop(lock);
    at_exit::call(release);
    Ok(())
}

/// The end of this process: whoever is the last one undoes it all.
fn release() {
    let Ok(lock) = lock() else { return };
    let mut users = users();
    users.remove(&std::process::id());
    if users.is_empty() {
        for point in crate::paths::entries(Path::new(PLACE)).filter(|path| path.is_dir()) {
            let _ = umount(&point);
            let _ = fs::remove_dir(&point);
        }
        let _ = fs::remove_file(Path::new(PLACE).join("users"));
        let _ = fs::remove_file(Path::new(PLACE).join("lock"));
        let _ = fs::remove_dir(PLACE);
    } else {
        let _ = write(&users);
    }
    drop(lock);
}

fn lock() -> Result<Flock<File>> {
    fs::create_dir_all(PLACE)?;
    let file = File::create(Path::new(PLACE).join("lock"))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}

/// Processes that need it and are still there.
fn users() -> BTreeSet<u32> {
    let list = fs::read_to_string(Path::new(PLACE).join("users")).unwrap_or_default();
    list.lines().filter_map(|line| line.parse().ok()).filter(|pid| is_alive(*pid)).collect()
}

fn write(users: &BTreeSet<u32>) -> Result {
    let list: Vec<String> = users.iter().map(ToString::to_string).collect();
    Ok(fs::write(Path::new(PLACE).join("users"), list.join("\n"))?)
}

/// Where v2 is mounted, if v1 is too.
fn unified_beside_v1() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let is_kind = |line: &&str, kind: &str| line.contains(&format!(" - {kind} "));
    table.lines().find(|line| is_kind(line, "cgroup"))?;
    let unified = table.lines().find(|line| is_kind(line, "cgroup2"))?;
    unified.split(' ').nth(4).map(PathBuf::from)
}

/// What v2 has, and what it is about to get: a controller whose v1 hierarchy was unmounted a moment ago belongs to
/// neither until the kernel has taken that apart.
fn controllers(unified: &Path) -> Result<BTreeSet<String>> {
    let list = fs::read_to_string(unified.join("cgroup.controllers"))?;
    let mut found: BTreeSet<String> = list.split_whitespace().map(str::to_owned).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let options =
        mounts.lines().filter_map(|line| line.split_once(" - cgroup ")?.1.split(' ').nth(1));
    let mounted: BTreeSet<&str> = options.flat_map(|options| options.split(',')).collect();
    for line in fs::read_to_string("/proc/cgroups")?.lines() {
        let mut fields = line.split_whitespace();
        if let (Some(name), Some(hierarchy)) = (fields.next(), fields.next())
            && hierarchy.parse::<u32>().is_ok_and(|number| number != 0)
            && !mounted.contains(name)
        {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// The one call that the standard library lacks.
mod at_exit {
    #![expect(unsafe_code, reason = "the C library alone knows when a test process ends")]

    use std::sync::OnceLock;

    static CALLEE: OnceLock<fn()> = OnceLock::new();

    extern "C" fn run() {
        if let Some(callee) = CALLEE.get() {
            callee();
        }
    }

    /// Calls a function when this process ends by returning from main or by `exit`.
    pub(super) fn call(callee: fn()) {
        if CALLEE.set(callee).is_ok() {
            // SAFETY: `run` is a C function without arguments that stays for the life of the process.
            let registered = unsafe { nix::libc::atexit(run) };
            debug_assert_eq!(registered, 0, "the C library keeps at least 32 of them");
        }
    }
}
