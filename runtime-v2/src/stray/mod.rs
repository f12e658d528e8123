//! Processes of a shim that nobody can end by asking.
//!
//! `start` may fail or hang after it has launched the long-running process, and that one may hang
//! too, or refuse all calls. Two things tell that a process is the shim of a bundle:
//!
//! * it was started in the bundle, whose path belongs to one container, and it names that
//!   container on its command line, runs the shim's executable, or has what shims and their
//!   children have in their environment: a shell of somebody who looks around has none of it;
//! * it listens at the address that the bundle notes, and it names the namespace or runs the
//!   executable: the process of a pod was started in the bundle of its first container only. One
//!   that was started after the shim had been seen there is the next of that pod.
//!
//! A process that listens at an address which is in use is spared, wherever it was started: the
//! first container of a pod may be gone long before the others, and its bundle half removed.
//!
//! It is killed with all its descendants: a stuck call of the OCI runtime would otherwise go on
//! and make the container after all.
//!
//! /proc is read process by process, not at one instant. A `start` that has launched its process
//! and ended between two of these reads hides both; so where a `start` may be under way, nothing
//! is taken to be there only when several looks in a row have seen nothing.

mod hold;

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::Duration,
};

use hold::Held;
use runtime_proto::bootstrap::ENV_NAMESPACE;
use rustix::process::Signal;

use crate::{
    address,
    bundle::Bundle,
    error::Result,
    id::Key,
    procfs::{self, Stat},
    shim_users::Users,
    socket_file,
};

/// A killed process needs a moment to be gone from /proc; fifty of these are one second, after
/// which it is stuck in the kernel and nothing helps.
const GONE_PAUSE: Duration = Duration::from_millis(20);
const GONE_TRIES: u32 = 50;

/// Looks that must see nothing where a `start` may be under way. A process evades a look only by
/// being launched during it by one that ends during it; `start` ends once so, and a process that
/// detaches itself by forking twice does once more.
const START_LOOKS: u32 = 3;

/// A process that has just begun to execute something has no command line for some microseconds;
/// two hundred of these are one second, after which it has hidden it on purpose.
const EXEC_PAUSE: Duration = Duration::from_millis(5);
const EXEC_TRIES: u32 = 200;

/// A stop is immediate but for a process that is within a long system call; those bind nothing.
const STOP_PAUSE: Duration = Duration::from_millis(1);
const STOP_TRIES: u32 = 20;

/// Whose processes to look for.
#[derive(Debug, Clone)]
pub(crate) struct Stray {
    /// The bundle.
    pub(crate) bundle: Bundle,
    /// The shim's executable, if it is known.
    pub(crate) binary: Option<PathBuf>,
    /// Where it listens, if that is known and nobody else uses it.
    pub(crate) seen: Option<Seen>,
    /// Where shims listen that are in use.
    pub(crate) spared: Vec<String>,
    /// What of it to look for.
    pub(crate) what: What,
}

/// Where a shim was seen, and when.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Its address.
    pub(crate) address: String,
    /// When it had been started by, as [`Stat::started`] has it.
    pub(crate) at: u64,
}

/// Which processes of a shim are unwanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// All.
    Shim,
    /// Those it has started for this bundle, whose path they name: calls of the OCI runtime. The
    /// shim itself goes on for others.
    Calls,
}

/// Processes found, by pid, with the times they were started: a pid alone may be another's by now.
type Found = HashMap<i32, u64>;

impl Stray {
    /// Kills what there is of it and removes the sockets it listened on; returns how many
    /// processes that were.
    ///
    /// # Errors
    /// When the search was cut off.
    pub(crate) async fn kill(self) -> Result<usize> {
        let bundle = self.bundle.clone();
        let (killed, sockets) = bundle.blocking(move |_| Ok(self.kill_all())).await?;
        for socket in sockets {
            socket_file::remove_once_dead(&socket).await;
        }
        Ok(killed)
    }

    /// Kills until nothing is found any more; tells how many and where they listened.
    fn kill_all(&self) -> (usize, HashSet<PathBuf>) {
        let (mut killed, mut sockets) = (0, HashSet::new());
        let mut quiet = 0;
        for _ in 0..GONE_TRIES {
            let found = self.settle();
            if found.is_empty() {
                quiet += 1;
                if quiet >= self.looks() {
                    break;
                }
                continue;
            }
            quiet = 0;
            killed = killed.max(found.len());
            let held: Vec<_> =
                found.into_iter().filter_map(|(pid, started)| Held::new(pid, started)).collect();
            // Stopped first, all of them: one that still runs could bind a socket after the look.
            held.iter().for_each(|process| process.send(Signal::STOP));
            held.iter().for_each(|process| await_stop(process.pid()));
            // All looks before the first kill: when a parent dies, the kernel hangs up on its
            // stopped children.
            sockets.extend(held.iter().flat_map(|process| procfs::sockets_of(process.pid())));
            held.iter().for_each(|process| process.send(Signal::KILL));
            std::thread::sleep(GONE_PAUSE);
        }
        (killed, sockets)
    }

    /// How many looks in a row must see nothing.
    fn looks(&self) -> u32 {
        if self.what == What::Shim && self.seen.is_none() { START_LOOKS } else { 1 }
    }

    /// Looks once it is known of every process in the bundle what it executes.
    fn settle(&self) -> Found {
        for _ in 0..EXEC_TRIES {
            let processes = procfs::processes();
            if self.looks() > 1 && self.is_executing(&processes) {
                std::thread::sleep(EXEC_PAUSE);
                continue;
            }
            return self.find(processes);
        }
        self.find(procfs::processes())
    }

    /// Whether some process in the bundle does not show yet what it is.
    fn is_executing(&self, processes: &HashMap<i32, Stat>) -> bool {
        let place = self.place();
        processes.keys().any(|pid| {
            procfs::works_in(*pid, &place)
                && !self.was_started_in(&place, *pid)
                && procfs::has_no_words(*pid)
        })
    }

    /// The bundle as /proc shows it: state directories are reached through links, such as /var/run.
    fn place(&self) -> PathBuf {
        let place = self.bundle.path().canonicalize();
        place.unwrap_or_else(|_| self.bundle.path().to_path_buf())
    }

    fn find(&self, processes: HashMap<i32, Stat>) -> Found {
        let place = self.place();
        let those = |wanted: &dyn Fn(i32, &Stat) -> bool| -> Found {
            let wanted = processes.iter().filter(|(pid, stat)| wanted(**pid, stat));
            wanted.map(|(pid, stat)| (*pid, stat.started)).collect()
        };
        let address = self.seen.as_ref().map(|seen| seen.address.clone());
        let listening = procfs::listening_inodes(&socket_names(address.as_slice()));
        let listens = |pid, stat: &Stat| {
            self.seen.as_ref().is_some_and(|seen| stat.started <= seen.at)
                && self.listens(pid, &listening)
        };
        if self.what == What::Shim {
            let found = those(&|pid, stat| self.was_started_in(&place, pid) || listens(pid, stat));
            return self.with_descendants(found, processes);
        }
        let shim = those(&listens);
        let path = self.bundle.path().to_str().unwrap_or_default();
        let mut calls = self.with_descendants(shim.clone(), processes.clone());
        calls.retain(|pid, _| !shim.contains_key(pid) && procfs::names(*pid, path));
        self.with_descendants(calls, processes)
    }

    /// Adds the children of what was found, and theirs, and takes out what is not to be touched.
    fn with_descendants(&self, mut found: Found, mut processes: HashMap<i32, Stat>) -> Found {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let spared = procfs::listening_inodes(&socket_names(&self.spared));
        let is_spared = |pid: i32| {
            pid <= 1
                || pid == own
                || (!spared.is_empty() && !procfs::socket_inodes(pid).is_disjoint(&spared))
        };
        found.retain(|pid, _| !is_spared(*pid));
        loop {
            let more: Found = processes
                .extract_if(|pid, stat| found.contains_key(&stat.parent) && !is_spared(*pid))
                .map(|(pid, stat)| (pid, stat.started))
                .collect();
            if more.is_empty() {
                return found;
            }
            found.extend(more);
        }
    }

    fn was_started_in(&self, place: &Path, pid: i32) -> bool {
        let Key { namespace, id } = self.bundle.key();
        procfs::works_in(pid, place)
            && (procfs::names(pid, id.as_str())
                || self.runs_binary(pid)
                || procfs::has_env(pid, ENV_NAMESPACE, namespace.as_str()))
    }

    fn listens(&self, pid: i32, inodes: &HashSet<String>) -> bool {
        !inodes.is_empty()
            && !procfs::socket_inodes(pid).is_disjoint(inodes)
            && (procfs::names(pid, self.bundle.key().namespace.as_str()) || self.runs_binary(pid))
    }

    fn runs_binary(&self, pid: i32) -> bool {
        self.binary.as_deref().is_some_and(|binary| procfs::runs(pid, binary))
    }
}

/// As /proc lists the sockets of these addresses.
fn socket_names(addresses: &[String]) -> HashSet<String> {
    addresses.iter().filter_map(|address| address::listed_name(address)).collect()
}

/// A signal takes effect when the process next leaves the kernel.
fn await_stop(pid: i32) {
    for _ in 0..STOP_TRIES {
        match procfs::stat(pid) {
            Some(stat) if !matches!(stat.state, 'T' | 't') => std::thread::sleep(STOP_PAUSE),
            _ => return,
        }
    }
}

/// Kills the processes of a shim that should be gone, and says so if there were any.
pub(crate) async fn make_sure(
    bundle: &Bundle,
    binary: Option<&Path>,
    seen: Option<Seen>,
    users: &Users,
) {
    let stray = Stray {
        what: What::Shim,
        spared: users.addresses(),
        bundle: bundle.clone(),
        binary: binary.map(Path::to_path_buf),
        seen,
    };
    let (namespace, id) = (&bundle.key().namespace, &bundle.key().id);
    match stray.kill().await {
        Ok(0) => {}
        Ok(count) => tracing::warn!(%namespace, %id, count, "killed a shim that did not end"),
        Err(error) => tracing::warn!(%namespace, %id, %error, "a shim may be left"),
    }
}

/// Kills what a shim that goes on for others is still doing for a bundle that goes.
pub(crate) async fn end_calls(bundle: &Bundle, binary: Option<&Path>, seen: Seen) {
    let stray = Stray {
        what: What::Calls,
        spared: Vec::new(),
        bundle: bundle.clone(),
        binary: binary.map(Path::to_path_buf),
        seen: Some(seen),
    };
    let (namespace, id) = (&bundle.key().namespace, &bundle.key().id);
    match stray.kill().await {
        Ok(0) => {}
        Ok(count) => tracing::warn!(%namespace, %id, count, "killed calls of the OCI runtime"),
        Err(error) => {
            tracing::warn!(%namespace, %id, %error, "a call of the OCI runtime may go on")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::config::{Config, Daemon};
    use crate::procfs::processes;

    fn bundle(dir: &Path) -> Bundle {
        let daemon = Daemon {
            grpc_address: String::new(),
            ttrpc_address: String::new(),
            binary: "/bin/true".into(),
            version: String::new(),
        };
        // By a link, as /var/run is one.
        let link = dir.join("link");
        std::os::unix::fs::symlink(dir, &link).unwrap();
        let config = Config::new(link.join("s"), link.join("r"), daemon);
        Bundle::create(&config, Key::new("ns", "stray-1").unwrap(), None).unwrap()
    }

    fn sleeper(cwd: &Path, id: &str) -> Child {
        let script = "sleep 1000 & read line";
        Command::new("/bin/sh")
            .args(["-c", script, "-id", id])
            .current_dir(cwd)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Somebody who listens at a socket and says that it is of this namespace.
    fn listener(path: &Path) -> Child {
        let socket = std::os::unix::net::UnixListener::bind(path).unwrap();
        Command::new("/bin/sh")
            .args(["-c", "sleep 1000 & wait", "-namespace", "ns"])
            .stdin(std::os::fd::OwnedFd::from(socket))
            .spawn()
            .unwrap()
    }

    #[tokio::test]
    async fn who_listens_where_the_shim_was_seen_and_was_started_later_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = bundle(dir.path());
        let path = dir.path().join("socket");
        let mut shim = listener(&path);
        let started = procfs::stat(i32::try_from(shim.id()).unwrap()).unwrap().started;
        let stray = |at| Stray {
            bundle: bundle.clone(),
            binary: None,
            seen: Some(Seen { address: format!("unix://{}", path.display()), at }),
            spared: Vec::new(),
            what: What::Shim,
        };
        assert_eq!(stray(started - 1).kill().await.unwrap(), 0);
        assert!(shim.try_wait().unwrap().is_none());
        assert!(stray(procfs::now()).kill().await.unwrap() > 0);
        shim.wait().unwrap();
    }

    #[tokio::test]
    async fn only_the_shim_of_this_bundle_is_killed_and_its_children_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = bundle(dir.path());
        let stray = Stray {
            bundle: bundle.clone(),
            binary: None,
            seen: None,
            spared: Vec::new(),
            what: What::Shim,
        };
        let mut shim = sleeper(bundle.path(), "stray-1");
        let mut visitor = sleeper(bundle.path(), "someone-else");
        let mut elsewhere = sleeper(dir.path(), "stray-1");
        // The shell and its background sleep; the shell may not have started that one yet.
        while stray.find(processes()).len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stray.clone().kill().await.unwrap(), 2);
        assert!(!shim.wait().unwrap().success());
        assert_eq!(stray.kill().await.unwrap(), 0);
        for other in [&mut visitor, &mut elsewhere] {
            assert!(other.try_wait().unwrap().is_none(), "not ours and still alive");
            let pid = i32::try_from(other.id()).unwrap();
            for (child, stat) in processes() {
                if stat.parent == pid {
                    Held::new(child, stat.started).unwrap().send(Signal::KILL);
                }
            }
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }
}
