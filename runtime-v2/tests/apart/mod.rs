//! A manager in a process of its own, to be killed where it stands. It is this very test binary,
//! run again for the one "test" below, with its orders in the environment.

use std::{
    env,
    fs::{self, OpenOptions},
    future::pending,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use async_trait::async_trait;
use protobuf::Message;
use runtime_proto::{
    any,
    events::{Envelope, TaskDelete, TaskExit},
    options::OptionsMessage,
    topics::Event,
    types::Mount,
};
use runtime_v2::{
    Config, CreateOptions, Environment, EventSink, EventSocket, ExecId, ExecOptions, Key,
    MemoryStore, ProcessId, Result, ShimMounts, TaskManager,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The orders, as JSON.
const JOB: &str = "MANAGER_APART";

/// What such a manager is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Where its directories and sockets are, and its records: `events.log` and `done.log`.
    pub(crate) home: PathBuf,
    pub(crate) namespace: String,
    /// The shim's binary.
    pub(crate) runtime: String,
    /// Calls, one after the other: `create c1`, `exec c1 e1`; `cycle c1` is for ever, beside them.
    pub(crate) calls: Vec<String>,
    pub(crate) spec: Value,
    /// Mounted as the root file system.
    pub(crate) rootfs: Option<PathBuf>,
    /// The OCI runtime.
    pub(crate) binary: Option<String>,
}

/// The process. It is killed when this is dropped.
pub(crate) struct Apart(Child);

impl Apart {
    pub(crate) fn spawn(job: &Job) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "apart::a_manager_of_its_own", "--ignored", "--nocapture"])
            .env(JOB, serde_json::to_string(job).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Kills it, without a chance to do anything more.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // Killed and waited for already, as a rule.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Exits or deletions that it has handed on: pids and statuses.
pub(crate) fn told(home: &Path, topic: &str, id: &str) -> Vec<(u32, u32)> {
    let log = fs::read_to_string(home.join("events.log")).unwrap_or_default();
    let wanted = format!("{topic} {id} ");
    let numbers = log.lines().filter_map(|line| line.strip_prefix(&wanted)?.split_once(' '));
    numbers.map(|(pid, status)| (pid.parse().unwrap(), status.parse().unwrap())).collect()
}

/// Whether a call is over, and well.
pub(crate) fn is_done(home: &Path, call: &str) -> bool {
    let log = fs::read_to_string(home.join("done.log")).unwrap_or_default();
    log.lines().any(|line| line == call)
}

fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Events to a file; exits not at all while there is a file `hold`.
#[derive(Debug)]
struct Log(PathBuf);

#[async_trait]
impl EventSink for Log {
    async fn publish(&self, event: Envelope) -> Result<()> {
        let packed = event.event.get_or_default();
        let (id, pid, status) = if event.topic == TaskExit::TOPIC {
            if self.0.join("hold").exists() {
                fs::write(self.0.join("held"), "").unwrap();
                pending::<()>().await;
            }
            let exit: TaskExit = any::unpack(packed).unwrap().unwrap();
            (exit.container_id, exit.pid, exit.exit_status)
        } else if event.topic == TaskDelete::TOPIC {
            let delete: TaskDelete = any::unpack(packed).unwrap().unwrap();
            (delete.container_id, delete.pid, delete.exit_status)
        } else {
            return Ok(());
        };
        append(&self.0.join("events.log"), &format!("{} {id} {pid} {status}", event.topic));
        Ok(())
    }
}

#[test]
#[ignore = "what other tests run as a process"]
fn a_manager_of_its_own() {
    let Ok(job) = env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(work(&job));
}

async fn work(job: &Job) {
    let path = |name: &str| job.home.join(name);
    let daemon = runtime_v2::Daemon {
        grpc_address: path("grpc").display().to_string(),
        ttrpc_address: path("events").display().to_string(),
        binary: "/bin/true".into(),
        version: "2.3.4".into(),
    };
    let (store, log) = (Arc::new(MemoryStore::default()), Arc::new(Log(job.home.clone())));
    let environment = Environment {
        containers: store.clone(),
        sandboxes: store,
        events: log.clone(),
        mounts: Arc::new(ShimMounts),
    };
    let config = Config::new(path("state"), path("root"), daemon);
    let manager = TaskManager::new(config, environment).unwrap();
    let _socket = EventSocket::serve(&path("events"), manager.clone(), log).unwrap();
    manager.load().await.unwrap().finish().await.unwrap();
    for call in &job.calls {
        if let Some(id) = call.strip_prefix("cycle ") {
            let (manager, job, id) = (manager.clone(), job.clone(), id.to_owned());
            tokio::spawn(async move {
                loop {
                    for verb in ["create", "start", "kill", "wait", "delete"] {
                        let _ = perform(&manager, &job, &format!("{verb} {id}")).await;
                    }
                }
            });
        } else if perform(&manager, job, call).await.is_ok() {
            append(&path("done.log"), call);
        }
    }
    pending::<()>().await;
}

async fn perform(manager: &TaskManager, job: &Job, call: &str) -> Result<()> {
    let mut words = call.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let (verb, id, exec) = (word(), word(), word());
    let key = Key::new(job.namespace.as_str(), id)?;
    match verb {
        "create" => return manager.create(key, options(job)).await.map(drop),
        "delete" => return manager.delete(&key).await.map(drop),
        _ => {}
    }
    let task = manager.get(&key).await?;
    match verb {
        "start" => task.start(&ProcessId::Init).await.map(drop),
        "kill" => task.kill(&ProcessId::Init, 9, true).await,
        "wait" => task.wait(&ProcessId::Init).await.map(drop),
        "exec" => {
            let exec = ExecId::new(exec)?;
            let process = serde_json::json!({ "args": ["/bin/sleep", "1000"], "cwd": "/",
                "user": { "uid": 0, "gid": 0 } });
            let spec = any::raw(any::OCI_PROCESS, process.to_string().into_bytes());
            let options = ExecOptions { spec: Some(spec), ..ExecOptions::default() };
            task.exec(&exec, options).await?;
            task.start(&exec.into()).await.map(drop)
        }
        other => panic!("{other}: no such call"),
    }
}

fn options(job: &Job) -> CreateOptions {
    let rootfs = job.rootfs.iter().map(|source| {
        let mut mount = Mount::new();
        (mount.type_, mount.source) = ("bind".into(), source.display().to_string());
        mount.options = vec!["rbind".into(), "rw".into()];
        mount
    });
    let task_options = job.binary.as_ref().map(|binary| {
        let mut options = OptionsMessage::new();
        options.binary_name.clone_from(binary);
        any::raw("containerd.runc.v1.Options", options.write_to_bytes().unwrap())
    });
    CreateOptions {
        spec: Some(any::raw(any::OCI_SPEC, job.spec.to_string().into_bytes())),
        rootfs: rootfs.collect(),
        runtime: job.runtime.clone(),
        task_options,
        ..CreateOptions::default()
    }
}
