//! A manager over a temporary directory, a real shim, and containers of a static busybox.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use nix::unistd::Pid;
use runtime_proto::{
    any,
    events::{Envelope, TaskDelete, TaskExit},
    topics::Event,
    types::{Any, Mount},
};
use runtime_v2::{
    Config, CreateOptions, Daemon, Environment, EventSink, EventSocket, Key, LoadReport,
    MemoryStore, ProcessId, Result, ShimMounts, Task, TaskManager, id::MAX_LEN,
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    apart::{Job, told},
    at_hand::{find, shims},
};

pub(crate) const INIT: ProcessId = ProcessId::Init;

/// Upper bound for things that must happen; only a hang meets it.
pub(crate) const HANG: Duration = Duration::from_secs(40);

/// Events as tests compare them: topic, id, pid and status.
#[derive(Debug, Default)]
struct Record(Mutex<Vec<(String, String, u32, u32)>>);

#[async_trait]
impl EventSink for Record {
    async fn publish(&self, event: Envelope) -> Result<()> {
        let packed = event.event.get_or_default();
        let told = if let Ok(Some(exit)) = any::unpack::<TaskExit>(packed) {
            (exit.container_id, exit.pid, exit.exit_status)
        } else if let Ok(Some(delete)) = any::unpack::<TaskDelete>(packed) {
            (delete.container_id, delete.pid, delete.exit_status)
        } else {
            return Ok(());
        };
        self.0.lock().unwrap().push((event.topic, told.0, told.1, told.2));
        Ok(())
    }
}

/// A place for one test with one shim.
pub(crate) struct Host {
    /// Which shim, for messages.
    pub(crate) shim: String,
    dir: TempDir,
    namespace: String,
    record: Arc<Record>,
    manager: Option<(TaskManager, EventSocket)>,
}

impl Host {
    /// One for every shim at hand.
    pub(crate) fn all(test: &str) -> Vec<Self> {
        let shims = if nix::unistd::geteuid().is_root() { shims() } else { BTreeMap::new() };
        if shims.is_empty() {
            eprintln!("skipped: no root or no shim");
        }
        shims.into_values().map(|shim| Self::new(test, &shim)).collect()
    }

    fn new(test: &str, shim: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix("mgs").tempdir_in("/tmp").unwrap();
        let tree = dir.path().join("tree");
        for name in ["bin", "proc", "dev", "tmp"] {
            fs::create_dir_all(tree.join(name)).unwrap();
        }
        fs::copy(find("busybox").expect("busybox, static"), tree.join("bin/busybox")).unwrap();
        for applet in ["sh", "sleep"] {
            std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet)).unwrap();
        }
        let unique =
            dir.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
        let mut host = Self {
            shim: shim.display().to_string(),
            dir,
            namespace: format!("{test}-{unique}"),
            record: Arc::default(),
            manager: None,
        };
        host.start_manager();
        host
    }

    pub(crate) fn start_manager(&mut self) {
        self.start_manager_with(|_| {});
    }

    /// Starts a manager whose configuration this changes.
    pub(crate) fn start_manager_with(&mut self, change: impl FnOnce(&mut Config)) {
        let path = |name: &str| self.dir.path().join(name);
        let daemon = Daemon {
            grpc_address: path("grpc").display().to_string(),
            ttrpc_address: path("events").display().to_string(),
            binary: "/bin/true".into(),
            version: "2.3.4".into(),
        };
        let store = Arc::new(MemoryStore::default());
        let environment = Environment {
            containers: store.clone(),
            sandboxes: store,
            events: self.record.clone(),
            mounts: Arc::new(ShimMounts),
        };
        let mut config = Config::new(path("state"), path("root"), daemon);
        change(&mut config);
        let manager = TaskManager::new(config, environment).unwrap();
        let socket =
            EventSocket::serve(&path("events"), manager.clone(), self.record.clone()).unwrap();
        self.manager = Some((manager, socket));
    }

    pub(crate) async fn stop_manager(&mut self) {
        let (manager, socket) = self.manager.take().unwrap();
        timed(manager.settled()).await;
        let shims = Arc::downgrade(manager.shims());
        drop((manager, socket));
        eventually("the manager is gone", || shims.strong_count() == 0).await;
    }

    /// Orders for a manager of its own over this host, whose container runs this.
    pub(crate) fn job(&self, id: &str, script: &str, calls: &[&str]) -> Job {
        let spec = self.spec(id, &["/bin/sh", "-c", script], None);
        Job {
            home: self.dir.path().into(),
            namespace: self.namespace.clone(),
            runtime: self.shim.clone(),
            calls: calls.iter().map(|call| (*call).to_owned()).collect(),
            spec: serde_json::from_slice(&spec.value).unwrap(),
            rootfs: Some(self.rootfs()),
            binary: None,
        }
    }

    pub(crate) fn home(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn load(&self) -> LoadReport {
        timed(timed(self.manager().load()).await.unwrap().finish()).await.unwrap()
    }

    pub(crate) fn manager(&self) -> &TaskManager {
        &self.manager.as_ref().unwrap().0
    }

    pub(crate) fn key(&self, id: &str) -> Key {
        Key::new(self.namespace.as_str(), id).unwrap()
    }

    /// A name that no other host uses.
    pub(crate) fn unique(&self, name: &str) -> String {
        format!("{name}-{}", self.namespace)
    }

    /// The same with the longest name that a namespace can have.
    pub(crate) fn with_longest_name(mut self) -> Self {
        self.namespace.push('-');
        let missing = MAX_LEN - self.namespace.len();
        self.namespace.push_str(&"n".repeat(missing));
        self
    }

    /// Whether the shim is this workspace's own.
    pub(crate) fn is_own(&self) -> bool {
        env::var_os("SHIM_RUNC").is_some_and(|own| Path::new(&own) == Path::new(&self.shim))
    }

    /// Whether the shim is one of the first generation, which knows no groups.
    pub(crate) fn is_v1(&self) -> bool {
        self.shim.ends_with("runc-v1")
    }

    /// Whether it is the Rust shim of crate `containerd-runc-shim`, as of 0.2.0.
    pub(crate) fn is_published(&self) -> bool {
        self.shim.ends_with("runc-v2-rs")
    }

    /// Says by name that this shim is left out of a test, for a fault that is its own. The file that
    /// `SKIPPED` names is what a whole run lists at its end.
    pub(crate) fn leave_out(&self, test: &str, why: &str) {
        let line = format!("{test} with {}: {why}", self.shim);
        eprintln!("skipped: {line}");
        if let Some(path) = env::var_os("SKIPPED") {
            let mut file = fs::File::options().append(true).create(true).open(path).unwrap();
            writeln!(file, "{line}").unwrap();
        }
    }

    /// The root file system that containers see.
    pub(crate) fn rootfs(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// An executable script; its path.
    pub(crate) fn script(&self, name: &str, body: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    pub(crate) fn spec(&self, id: &str, args: &[&str], group: Option<&str>) -> Any {
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let annotations = match group {
            Some(group) => json!({ "io.kubernetes.cri.sandbox-id": group }),
            None => json!({}),
        };
        let spec = json!({
            "ociVersion": "1.0.2",
            "process": { "args": args, "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 } },
            "root": { "path": "rootfs" },
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
            "annotations": annotations,
            "linux": {
                // By default it is named after the id alone, which other tests use too.
                "cgroupsPath": format!("/mgs/{}-{id}", self.namespace),
                "namespaces": namespaces,
                "resources": { "devices": [{ "allow": true, "access": "rwm" }] },
            },
        });
        any::raw(any::OCI_SPEC, spec.to_string().into_bytes())
    }

    pub(crate) fn options(&self, id: &str, script: &str) -> CreateOptions {
        let mut rootfs = Mount::new();
        rootfs.type_ = "bind".into();
        rootfs.source = self.rootfs().display().to_string();
        rootfs.options = vec!["rbind".into(), "rw".into()];
        CreateOptions {
            spec: Some(self.spec(id, &["/bin/sh", "-c", script], None)),
            rootfs: vec![rootfs],
            runtime: self.shim.clone(),
            ..CreateOptions::default()
        }
    }

    async fn start(&self, id: &str, options: CreateOptions) -> Task {
        let task = timed(self.manager().create(self.key(id), options)).await;
        let task = task.unwrap_or_else(|error| panic!("{}: {error}", self.shim));
        timed(task.start(&INIT)).await.unwrap_or_else(|error| panic!("{}: {error}", self.shim));
        task
    }

    pub(crate) async fn run(&self, id: &str, script: &str) -> Task {
        self.start(id, self.options(id, script)).await
    }

    pub(crate) async fn run_in_group(&self, id: &str, script: &str, group: &str) -> Task {
        let spec = Some(self.spec(id, &["/bin/sh", "-c", script], Some(group)));
        self.start(id, CreateOptions { spec, ..self.options(id, script) }).await
    }

    /// Killed and deleted.
    pub(crate) async fn end(&self, id: &str) {
        let task = timed(self.manager().get(&self.key(id))).await.unwrap();
        timed(task.kill(&INIT, 9, true)).await.unwrap();
        timed(task.wait(&INIT)).await.unwrap();
        timed(self.manager().delete(&self.key(id))).await.unwrap();
    }

    fn told(&self, topic: &str, id: &str) -> Vec<(u32, u32)> {
        let record = self.record.0.lock().unwrap();
        let of_it = record.iter().filter(|event| event.0 == topic && event.1 == id);
        of_it.map(|event| (event.2, event.3)).collect()
    }

    pub(crate) fn exits(&self, id: &str) -> Vec<(u32, u32)> {
        [told(self.home(), TaskExit::TOPIC, id), self.told(TaskExit::TOPIC, id)].concat()
    }

    pub(crate) fn deletes(&self, id: &str) -> Vec<(u32, u32)> {
        [told(self.home(), TaskDelete::TOPIC, id), self.told(TaskDelete::TOPIC, id)].concat()
    }

    /// Living processes with the namespace on their command line: shims, and OCI runtimes.
    pub(crate) fn shims(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let names = line.split(|byte| *byte == 0).any(|word| word == self.namespace.as_bytes());
            names && has_process(*pid)
        })
        .map(Pid::from_raw)
        .collect()
    }

    /// Nothing is left on the host: no shim, bundle, mount, container, entry.
    pub(crate) async fn assert_clean(&self) {
        eventually("shims end", || self.shims().is_empty()).await;
        let dir = self.dir.path();
        for place in ["state", "root"] {
            let place = dir.join(place).join(&self.namespace);
            let left: Vec<_> =
                fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "{}: {left:?}", self.shim);
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(dir.to_str().unwrap()), "{}: {mounts}", self.shim);
        let containers = fs::read_dir(self.runc_state()).map(Iterator::count).unwrap_or(0);
        assert_eq!(containers, 0, "{}: containers of the OCI runtime", self.shim);
        // One that is ending has no command line any more, and still a working directory.
        let ours = dir.to_str().unwrap();
        eventually(&format!("{}: no strays", self.shim), || processes_below(ours).is_empty()).await;
        assert!(self.manager().shims().list(None).is_empty());
    }

    fn runc_state(&self) -> PathBuf {
        Path::new("/run/containerd/runc").join(&self.namespace)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.manager.take();
        for shim in self.shims() {
            let _ = nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGKILL);
        }
        for left in fs::read_dir(self.runc_state()).into_iter().flatten().flatten() {
            let _ = Command::new("runc")
                .args(["--root".as_ref(), self.runc_state().as_os_str()])
                .args(["delete".as_ref(), "--force".as_ref(), left.file_name().as_os_str()])
                .status();
        }
        let _ = fs::remove_dir(self.runc_state());
    }
}

/// Processes that work in a directory below this one, or run something from there.
fn processes_below(dir: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let links = entries.flat_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        ["cwd", "exe"].map(|link| {
            let target = fs::read_link(entry.path().join(link)).unwrap_or_default();
            format!("{} {line}", target.display())
        })
    });
    links.filter(|link| link.starts_with(dir)).collect()
}

/// Whether a process lives.
pub(crate) fn has_process(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits for something to come true.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !holds() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails the test instead of hanging it.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.expect("this must not hang")
}
