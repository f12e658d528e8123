//! Runs a container from an OCI bundle with no containerd at all, and prints its events:
//!
//! ```text
//! cargo run -p runtime-v2 --example run_bundle -- io.containerd.runc.v2 /path/to/bundle
//! ```
//! The runtime is a name or the absolute path of any shim binary; `root.path` in the bundle's
//! `config.json` must be `rootfs`, as `runc spec` writes it.
#![expect(clippy::print_stdout, reason = "this prints what it is about")]

use std::{error::Error, fs, path::PathBuf, process, sync::Arc};

use runtime_proto::{any, types::Mount};
use runtime_v2::{
    Config, CreateOptions, Daemon, Environment, EventSocket, Exchange, Key, MemoryStore, ProcessId,
    ShimMounts, Stdio, TaskManager,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(runtime), Some(bundle)) = (args.next(), args.next()) else {
        return Err("usage: run_bundle RUNTIME BUNDLE".into());
    };
    let bundle = PathBuf::from(bundle).canonicalize()?;
    let home = std::env::temp_dir().join(format!("run-bundle-{}", process::id()));
    fs::create_dir(&home)?;

    // A manager of our own: where it keeps things, and what it needs from us.
    let address = |name: &str| home.join(name).display().to_string();
    let daemon = Daemon {
        grpc_address: address("none"),
        ttrpc_address: address("events"),
        binary: "/bin/true".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let (store, exchange) = (Arc::new(MemoryStore::default()), Arc::new(Exchange::new(100)));
    let environment = Environment {
        containers: store.clone(),
        sandboxes: store,
        events: exchange.clone(),
        mounts: Arc::new(ShimMounts),
    };
    let manager =
        TaskManager::new(Config::new(home.join("state"), home.join("root"), daemon), environment)?;
    let _events = EventSocket::serve(&home.join("events"), manager.clone(), exchange.clone())?;
    let mut events = exchange.subscribe();
    tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            println!("event {} {}", event.namespace, event.topic);
        }
    });

    // The container: its root file system is mounted by the shim, its output comes to us.
    let mut rootfs = Mount::new();
    rootfs.type_ = "bind".into();
    rootfs.source = bundle.join("rootfs").display().to_string();
    rootfs.options = vec!["rbind".into(), "rw".into()];
    let stream = |fd: u8| format!("file:///proc/{}/fd/{fd}", process::id());
    let options = CreateOptions {
        spec: Some(any::raw(any::OCI_SPEC, fs::read(bundle.join("config.json"))?)),
        rootfs: vec![rootfs],
        stdio: Stdio { stdout: stream(1), stderr: stream(2), ..Stdio::default() },
        runtime,
        ..CreateOptions::default()
    };
    let key = Key::new("example", format!("run-{}", process::id()))?;
    let task = manager.create(key.clone(), options).await?;
    println!("created {key}, pid {}", task.pid());
    task.start(&ProcessId::Init).await?;
    let exit = task.wait(&ProcessId::Init).await?;
    manager.delete(&key).await?;
    println!("ended with status {}", exit.status);
    fs::remove_dir_all(&home)?;
    Ok(())
}
