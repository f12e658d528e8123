//! Putting the machine in order after a failed test, so that one failure does not cause others.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Item, Kind, SHARED_PLACES, Scope, cgroup, mount, process};

/// How long killed processes may take to be gone: they only have to be reaped.
const KILL: Duration = Duration::from_secs(5);

/// Removes everything that a snapshot of this scope would show. Only ever for the scope of one fixture: with no token
/// it does nothing.
///
/// Best effort by nature: the caller has reported the leak already.
pub fn sweep(scope: &Scope) {
    let Some(token) = &scope.token else { return };
    kill_all(scope);
    for mount in mount::find_mounts(scope).iter().rev() {
        let _ = umount2(&mount.point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
    for dir in cgroup::find_dirs(scope).iter().rev() {
        let _ = fs::remove_dir(dir);
    }
    let items: Vec<Item> = super::Snapshot::take(scope).items().cloned().collect();
    for item in items {
        match item.kind {
            Kind::Socket => drop(fs::remove_file(&item.name)),
            Kind::Fifo => {
                let _ = fs::remove_file(&item.name);
                // ctr makes a directory for each set of fifos, which goes with the last of them.
                let _ = Path::new(&item.name).parent().map(fs::remove_dir);
            }
            Kind::File => {
                let _ = fs::remove_file(&item.name).or_else(|_| fs::remove_dir_all(&item.name));
            }
            Kind::Process | Kind::Mount | Kind::Cgroup | Kind::Loop | Kind::Descriptor => {}
        }
    }
    for place in SHARED_PLACES {
        // The namespace's directory in the runtimes' root, which they make and never remove.
        let dir = Path::new(place).join(token);
        let _ = fs::remove_dir(dir.join(".empty-directory"));
        let _ = fs::remove_dir(dir);
    }
}

fn kill_all(scope: &Scope) {
    let start = Instant::now();
    loop {
        let processes = process::find_processes(scope);
        if processes.is_empty() || start.elapsed() > KILL {
            return;
        }
        for process in processes {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGCONT);
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
