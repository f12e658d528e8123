//! Containers over a runtime that does next to nothing: what the shim itself has to get right.
#![expect(clippy::unwrap_used, reason = "a test file: whatever fails, fails the test")]

use std::{
    fs,
    future::Future,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use runtime_proto::{any, errdefs::Code, options::OptionsMessage, protobuf::Message};
use shim_runc::{
    container::{Container, CreateRequest, ExecRequest, ProcessId, Shared},
    process::Stdio,
    publisher::Publisher,
    reaper::{Exit, Reaper},
    runc::options::RuncOptions,
    sys::process::become_subreaper,
};

/// Detects hangs; nothing here takes long.
const HANG: Duration = Duration::from_secs(60);

/// A runtime: `create` and `exec` start a process that waits, `kill` ends that of `create`; `kill` and `delete` hang or fail when
/// asked to.
const RUNTIME: &str = r#"#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
verb=$1
for word; do
    [ "$before" = --pid-file ] && pid_file=$word
    before=$word
done
[ ! -e "$0.hangs" ] || [ "$(cat "$0.hangs")" != $verb ] || exec sleep 1000
[ ! -e "$0.fails" ] || [ "$(cat "$0.fails")" != $verb ] || exit 1
case $verb in
create | exec)
    sleep 1000 </dev/null >/dev/null 2>&1 &
    printf %s $! >"$pid_file"
    [ $verb = exec ] || cp "$pid_file" "$0.init"
    ;;
kill) kill -9 "$(cat "$0.init")" ;;
esac
"#;

struct Bundle(tempfile::TempDir);

impl Bundle {
    fn new() -> Self {
        let bundle = Self(tempfile::tempdir().unwrap());
        let runtime = bundle.path("runtime.sh");
        fs::write(&runtime, RUNTIME).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
        bundle
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn create(&self, shared: &Shared) -> Arc<Container> {
        let mut options = OptionsMessage::new();
        options.binary_name = self.path("runtime.sh").to_str().unwrap().into();
        let options = any::raw("containerd.runc.v1.Options", options.write_to_bytes().unwrap());
        let request = CreateRequest {
            id: "c".into(),
            bundle: self.0.path().into(),
            rootfs: Vec::new(),
            stdio: Stdio::default(),
            checkpoint: String::new(),
            options: RuncOptions::sent(Some(&options)).unwrap(),
        };
        Container::create(shared, request).await.unwrap()
    }
}

fn exec(id: &str) -> ExecRequest {
    ExecRequest { id: id.into(), stdio: Stdio::default(), spec: b"{}".to_vec() }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// An exec that was never started ends with its container, for those who wait for it, too.
async fn a_reserved_exec_ends_with_its_container(shared: &Shared) {
    let bundle = Bundle::new();
    let container = bundle.create(shared).await;
    container.exec(exec("e")).unwrap();
    let waiting = tokio::spawn({
        let container = Arc::clone(&container);
        async move { container.wait(ProcessId::Exec("e")).unwrap().await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    soon("delete", container.delete(|| ())).await.unwrap();
    assert_eq!(soon("wait", waiting).await.unwrap(), Exit::never());
    assert!(container.view(ProcessId::Exec("e")).is_err());
}

/// Any id may be an exec's, that of a file of init as well.
async fn an_exec_may_be_called_init(shared: &Shared) {
    let bundle = Bundle::new();
    let container = bundle.create(shared).await;
    container.start().await.unwrap();
    let init = container.pid().to_string();
    container.exec(exec("init")).unwrap();
    let pid = container.start_exec("init").await.unwrap();
    assert_ne!(pid.to_string(), init);
    assert_eq!(read(&bundle.path("init.pid")), init);
    container.kill(ProcessId::Exec("init"), 9, false).await.unwrap();
    let exit = soon("exec", container.wait(ProcessId::Exec("init")).unwrap()).await;
    assert_eq!(exit.status, 128 + 9);
    container.delete_exec("init").await.unwrap();
    assert_eq!(read(&bundle.path("init.pid")), init, "removed with the exec");
    container.kill(ProcessId::Init, 9, false).await.unwrap();
    soon("init", container.wait(ProcessId::Init).unwrap()).await;
    soon("delete", container.delete(|| ())).await.unwrap();
    let left: Vec<_> = fs::read_dir(bundle.path("")).unwrap().collect();
    let left = left.into_iter().map(|entry| entry.unwrap().file_name()).filter(|name| {
        let name = name.to_string_lossy();
        name.contains("exec") || name.contains("process.json")
    });
    assert_eq!(left.count(), 0, "of the exec");
}

/// What a runtime does not finish is given up, and can be asked of it again.
async fn a_delete_in_which_the_runtime_hangs_can_be_repeated(shared: &Shared) {
    let bundle = Bundle::new();
    let container = bundle.create(shared).await;
    container.start().await.unwrap();
    container.kill(ProcessId::Init, 9, false).await.unwrap();
    soon("init", container.wait(ProcessId::Init).unwrap()).await;
    let hangs = bundle.path("runtime.sh.hangs");
    fs::write(&hangs, "delete").unwrap();
    // Nothing else is going on: the time that it takes passes at once.
    tokio::time::pause();
    let error = container.delete(|| panic!("forgotten")).await.unwrap_err();
    tokio::time::resume();
    assert_eq!(error.kind(), Code::DeadlineExceeded, "{error}");
    fs::remove_file(&hangs).unwrap();
    let deleted = soon("delete", container.delete(|| ())).await.unwrap();
    assert_eq!(deleted.exit.status, 128 + 9);
}

/// A container that was never started goes with its delete, also where the runtime does not end it.
async fn what_the_runtime_does_not_kill_is_deleted_all_the_same(shared: &Shared) {
    let bundle = Bundle::new();
    let container = bundle.create(shared).await;
    fs::write(bundle.path("runtime.sh.fails"), "kill").unwrap();
    let deleted = soon("delete", container.delete(|| ())).await.unwrap();
    assert_eq!(deleted.exit.status, 128 + 9);
}

/// A signal that the runtime does not send is given up; SIGKILL does without it.
async fn a_kill_in_which_the_runtime_hangs_ends(shared: &Shared) {
    let bundle = Bundle::new();
    let container = bundle.create(shared).await;
    container.start().await.unwrap();
    let hangs = bundle.path("runtime.sh.hangs");
    fs::write(&hangs, "kill").unwrap();
    tokio::time::pause();
    let error = container.kill(ProcessId::Init, 15, false).await.unwrap_err();
    assert_eq!(error.kind(), Code::DeadlineExceeded, "{error}");
    container.kill(ProcessId::Init, 9, false).await.unwrap();
    tokio::time::resume();
    // What init leaves is ended by the runtime again.
    fs::remove_file(&hangs).unwrap();
    let exit = soon("init", container.wait(ProcessId::Init).unwrap()).await;
    assert_eq!(exit.status, 128 + 9);
    soon("delete", container.delete(|| ())).await.unwrap();
}

/// One test: two reapers in one process would take each other's children.
#[test]
fn containers_and_their_execs() {
    become_subreaper().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let reaper = Reaper::new();
        let shared = Shared {
            namespace: "ns".into(),
            reaper: reaper.clone(),
            publisher: Publisher::new("ns"),
        };
        tokio::spawn(reaper.listen().unwrap());
        a_reserved_exec_ends_with_its_container(&shared).await;
        an_exec_may_be_called_init(&shared).await;
        a_delete_in_which_the_runtime_hangs_can_be_repeated(&shared).await;
        what_the_runtime_does_not_kill_is_deleted_all_the_same(&shared).await;
        a_kill_in_which_the_runtime_hangs_ends(&shared).await;
    });
}
