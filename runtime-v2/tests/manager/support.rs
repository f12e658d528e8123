//! A manager over a temporary directory, with the test double as its shim, and its host counted.
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runtime_proto::{
    any,
    events::{Envelope, TaskDelete, TaskExit},
    topics::Event,
    types::{Mount, Timestamp},
};
use runtime_v2::{
    Activation, Code, Config, CreateOptions, Daemon, Environment, Error, EventSink, EventSocket,
    Key, LoadReport, MemoryStore, MountActivator, ProcessId, Result, Task, TaskManager,
    events::envelope,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

/// Upper bound for things that must happen; only a hang meets it.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// An event as tests compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) topic: String,
    pub(crate) id: String,
    pub(crate) pid: u32,
    pub(crate) status: u32,
}

/// Everything that was published, by shims and manager alike.
#[derive(Debug, Default)]
pub(crate) struct Record {
    seen: Mutex<Vec<Seen>>,
    /// Whether those who hand on what was seen are held up.
    pub(crate) holds: watch::Sender<bool>,
}

#[async_trait]
impl EventSink for Record {
    async fn publish(&self, event: Envelope) -> Result<()> {
        let packed = event.event.get_or_default();
        let (id, pid, status) = if event.topic == TaskExit::TOPIC {
            let exit: TaskExit = any::unpack(packed).unwrap().unwrap();
            (exit.container_id, exit.pid, exit.exit_status)
        } else if event.topic == TaskDelete::TOPIC {
            let delete: TaskDelete = any::unpack(packed).unwrap().unwrap();
            (delete.container_id, delete.pid, delete.exit_status)
        } else {
            (String::new(), 0, 0)
        };
        self.seen.lock().unwrap().push(Seen { topic: event.topic, id, pid, status });
        // Its sender is there as long as this is.
        let _ = self.holds.subscribe().wait_for(|holds| !holds).await;
        Ok(())
    }
}

impl Record {
    /// Events of one topic about one container.
    pub(crate) fn of(&self, topic: &str, id: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.topic == topic && seen.id == id).cloned().collect()
    }

    pub(crate) fn exits(&self, id: &str) -> Vec<Seen> {
        self.of(TaskExit::TOPIC, id)
    }

    pub(crate) fn deletes(&self, id: &str) -> Vec<Seen> {
        self.of(TaskDelete::TOPIC, id)
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Mounts that were made for containers, by somebody who outlives the manager.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    made: Mutex<BTreeSet<String>>,
    /// What it does in the place of making any.
    pub(crate) trouble: Mutex<Option<Trouble>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    Fails,
    Hangs,
}

impl Mounts {
    /// The ids of those containers.
    pub(crate) fn made(&self) -> Vec<String> {
        self.made.lock().unwrap().iter().cloned().collect()
    }
}

#[async_trait]
impl MountActivator for Mounts {
    async fn activate(&self, key: &Key, mut mounts: Vec<Mount>) -> Result<Activation> {
        let trouble = *self.trouble.lock().unwrap();
        match trouble {
            Some(Trouble::Fails) => return Err(Error::new(Code::Unknown, "no such handler")),
            Some(Trouble::Hangs) => std::future::pending().await,
            None => {}
        }
        let made = self.made.lock().unwrap().insert(key.id.to_string());
        mounts.retain(|mount| mount.type_ != "special");
        Ok(Activation { left: mounts, made })
    }

    async fn deactivate(&self, key: &Key) -> Result<()> {
        self.made.lock().unwrap().remove(key.id.as_str());
        Ok(())
    }
}

pub(crate) fn mount(kind: &str, source: &str) -> Mount {
    let mut mount = Mount::new();
    (mount.type_, mount.source) = (kind.into(), source.into());
    mount
}

/// A host of its own for one test.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) record: Arc<Record>,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) mounts: Arc<Mounts>,
    manager: Option<(TaskManager, EventSocket)>,
}

impl Fixture {
    /// With the test double doing this.
    pub(crate) fn new(script: &Value) -> Self {
        let fixture = Self::without_manager(script);
        fixture.with_manager()
    }

    pub(crate) fn without_manager(script: &Value) -> Self {
        // Short, for the sake of socket paths; real, for the sake of comparisons with /proc.
        let dir = tempfile::Builder::new().prefix("mgr").tempdir_in("/tmp").unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fakeshim"), dir.path().join("shim"))
            .unwrap();
        let fixture = Self {
            dir,
            record: Arc::default(),
            store: Arc::default(),
            mounts: Arc::default(),
            manager: None,
        };
        fixture.script(script);
        fixture
    }

    fn with_manager(mut self) -> Self {
        self.start_manager();
        self
    }

    pub(crate) fn start_manager(&mut self) {
        self.start_manager_in(Environment {
            containers: self.store.clone(),
            sandboxes: self.store.clone(),
            events: self.record.clone(),
            mounts: self.mounts.clone(),
        });
    }

    pub(crate) fn start_manager_in(&mut self, environment: Environment) {
        let manager = TaskManager::new(self.config(), environment).unwrap();
        let events = self.path("events");
        let socket = EventSocket::serve(&events, manager.clone(), self.record.clone()).unwrap();
        self.manager = Some((manager, socket));
    }

    /// Lets go of the manager, as the end of its process does.
    pub(crate) async fn stop_manager(&mut self) {
        let (manager, socket) = self.manager.take().unwrap();
        timed(manager.settled()).await;
        let shims = Arc::downgrade(manager.shims());
        drop((manager, socket));
        // The socket's server lets go of its handle when its task is next run.
        eventually("the manager is gone", || shims.strong_count() == 0).await;
    }

    /// A new manager over the same directories, with everything loaded.
    pub(crate) async fn restart(&mut self) -> LoadReport {
        self.stop_manager().await;
        self.start_manager();
        self.load().await
    }

    pub(crate) async fn load(&self) -> LoadReport {
        timed(timed(self.manager().load()).await.unwrap().finish()).await.unwrap()
    }

    pub(crate) fn config(&self) -> Config {
        let daemon = Daemon {
            grpc_address: self.path("grpc").display().to_string(),
            ttrpc_address: self.path("events").display().to_string(),
            binary: "/bin/true".into(),
            version: "2.3.4".into(),
        };
        Config::new(self.path("state"), self.path("root"), daemon)
    }

    pub(crate) fn manager(&self) -> &TaskManager {
        &self.manager.as_ref().unwrap().0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn bundle(&self, id: &str) -> PathBuf {
        self.path("state/ns").join(id)
    }

    /// Changes what the test double does from now on.
    pub(crate) fn script(&self, script: &Value) {
        let (fresh, place) = (self.path("fakeshim.fresh"), self.path("fakeshim.json"));
        fs::write(&fresh, script.to_string()).unwrap();
        fs::rename(fresh, place).unwrap();
    }

    pub(crate) fn options(&self) -> CreateOptions {
        CreateOptions {
            spec: Some(any::raw(any::OCI_SPEC, b"{}".to_vec())),
            rootfs: vec![mount("special", "/one"), mount("bind", "/two")],
            runtime: self.path("shim").display().to_string(),
            ..CreateOptions::default()
        }
    }

    pub(crate) async fn create(&self, id: &str) -> Result<Task> {
        timed(self.manager().create(key(id), self.options())).await
    }

    /// Created and started.
    pub(crate) async fn run(&self, id: &str) -> Task {
        let task = self.create(id).await.unwrap();
        timed(task.start(&ProcessId::Init)).await.unwrap();
        task
    }

    /// Shows the manager an exit, as if a shim had told it.
    pub(crate) async fn observe_exit(&self, id: &str, pid: u32, status: u32) {
        let mut exit = TaskExit::new();
        (exit.container_id, exit.id) = (id.into(), id.into());
        (exit.pid, exit.exit_status) = (pid, status);
        exit.exited_at = Some(Timestamp::now()).into();
        self.observe(&exit).await;
    }

    /// Shows the manager an event, as if a shim had told it.
    pub(crate) async fn observe<E: Event>(&self, event: &E) {
        self.manager().observe(&envelope(&key("any").namespace, event).unwrap()).await;
    }

    /// Killed and deleted.
    pub(crate) async fn end(&self, id: &str) {
        let task = timed(self.manager().get(&key(id))).await.unwrap();
        timed(task.kill(&ProcessId::Init, 9, false)).await.unwrap();
        timed(self.manager().delete(&key(id))).await.unwrap();
    }

    /// What the test double was asked, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("calls.log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// How often it was asked exactly this.
    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| *line == call).count()
    }

    /// Pids of all shims that were launched, in order.
    pub(crate) fn launched(&self) -> Vec<i32> {
        let calls = self.calls();
        calls.iter().filter_map(|line| line.strip_prefix("launched ")?.parse().ok()).collect()
    }

    pub(crate) fn living(&self) -> Vec<i32> {
        // By now, some of the pids may be those of other processes, or of their threads.
        let own = self.path("shim").display().to_string();
        let runs = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(own.as_bytes())
        };
        self.launched().into_iter().filter(|pid| alive(*pid) && runs(pid)).collect()
    }

    /// Nothing is left on the host: no shim, socket, bundle, work directory, entry.
    pub(crate) async fn assert_clean(&self) {
        eventually("shims end", || self.living().is_empty()).await;
        assert_eq!(self.left_over(), Vec::<String>::new());
        assert!(self.manager().list(None).is_empty());
        assert!(self.manager().shims().list(None).is_empty());
    }

    /// Files that should not be there when nothing runs.
    pub(crate) fn left_over(&self) -> Vec<String> {
        let mut found = Vec::new();
        for dir in ["state/ns", "root/ns", "s"] {
            for name in names(&self.path(dir)) {
                if !name.ends_with(".lock") {
                    found.push(format!("{dir}/{name}"));
                }
            }
        }
        found.extend(self.mounts.made().into_iter().map(|id| format!("mounts of {id}")));
        found
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // The manager first, or it would clean up behind the shims that are killed here.
        if let Some((manager, socket)) = self.manager.take() {
            let shims = Arc::downgrade(manager.shims());
            drop((manager, socket));
            let deadline = Instant::now() + Duration::from_secs(2);
            while shims.strong_count() > 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        for pid in self.living() {
            signal(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

pub(crate) fn key(id: &str) -> Key {
    Key::new("ns", id).unwrap()
}

pub(crate) fn names(dir: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub(crate) fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    // One that has ended meanwhile needs no signal.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
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

/// The script of a good shim.
pub(crate) fn good() -> Value {
    json!({})
}
