//! `delete`: cleans up after a shim that is gone, whatever it left and whatever is missing.
//!
//! The manager also runs it after every ordinary delete, when nothing is left at all: so nothing
//! missing is an error here, and everything is told on stderr only.

use std::{
    env,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use protobuf::Message;
use runtime_proto::{errdefs::Code, task::DeleteResponse};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

use super::{args::Args, aside};
use crate::{
    error::{Error, Result},
    log::Log,
    mount,
    process::{parse_pid, read_pid_file},
    publisher::timestamp,
    reaper::Reaper,
    runc::{Runc, options::RuncOptions},
    sys::process,
};

/// What a container that lost its shim is said to have ended with: 128 + SIGKILL.
const KILLED: u32 = 137;
/// How long `delete` may take without the last resort below. The manager gives it 5 s, and kills it then.
const WHOLE: Duration = Duration::from_millis(4500);
/// How long the runtime may take to kill and forget a container.
const RUNTIME: Duration = Duration::from_millis(3500);
/// How long detaching a rootfs may take that cannot be unmounted in time. It asks no filesystem.
const DETACH: Duration = Duration::from_millis(300);
/// What unmounting leaves of its time to whoever waits for it.
const MARGIN: Duration = Duration::from_millis(200);

pub(super) fn delete(args: &Args) -> Result<()> {
    let begun = Instant::now();
    let bundle = bundle(args)?;
    process::become_subreaper().map_err(|error| Error::io("become a subreaper", error))?;
    Log::new(args.debug).install();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("make the runtime", error))?;
    runtime.block_on(delete_container(args, &bundle))?;
    drop(runtime);
    unmount(args, bundle.join("rootfs"), WHOLE.saturating_sub(begun.elapsed()));
    let mut response = DeleteResponse::new();
    response.pid = pid(&bundle);
    response.exit_status = KILLED;
    response.exited_at = Some(timestamp(SystemTime::now())).into();
    let bytes = response
        .write_to_bytes()
        .map_err(|error| Error::caused(Code::Internal, "encode the answer", error))?;
    super::print(&bytes)
}

/// The working directory is the bundle of this id, or a sibling of it.
fn bundle(args: &Args) -> Result<PathBuf> {
    if let Some(bundle) = &args.bundle
        && bundle.is_absolute()
    {
        return Ok(bundle.clone());
    }
    let here = env::current_dir().map_err(|error| Error::io("find the bundle", error))?;
    Ok(here.parent().unwrap_or(&here).join(&args.id))
}

async fn delete_container(args: &Args, bundle: &Path) -> Result<()> {
    // Half a clean-up helps nobody: asked to end, we go on.
    let listen = |kind| signal(kind).map_err(|error| Error::io("listen for signals", error));
    let _ignored = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let reaper = Reaper::new();
    tokio::spawn(reaper.listen().map_err(|error| Error::io("listen for children", error))?);
    let options = RuncOptions::load(bundle).unwrap_or_else(|error| {
        tracing::warn!(id = args.id, %error, "default options are used");
        RuncOptions::default()
    });
    let runc = Runc::new(&options, &args.namespace, bundle, reaper);
    match tokio::time::timeout(RUNTIME, runc.delete(&args.id, true)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(id = args.id, %error, "container not deleted"),
        Err(_) => tracing::warn!(id = args.id, "the runtime does not answer"),
    }
    Ok(())
}

/// Unmounts the rootfs, within a limit; if that is not enough, detaches it.
///
/// A filesystem whose server is dead holds up whoever touches it, in the worst case beyond SIGKILL, and with it the end of
/// that process. So it is touched by processes that nobody waits for when they are late.
fn unmount(args: &Args, rootfs: PathBuf, limit: Duration) {
    let patience = limit.saturating_sub(MARGIN).min(mount::PATIENCE);
    let (here, path) = (rootfs.clone(), rootfs);
    match aside::run(limit, move || mount::unmount_recursive(&path, patience)) {
        Ok(()) => {}
        Err(error) if error.kind() == Code::DeadlineExceeded => {
            tracing::warn!(id = args.id, "unmounting rootfs hangs; it is detached");
            if let Err(error) = aside::run(DETACH, move || mount::detach_recursive(&here)) {
                tracing::warn!(id = args.id, %error, "rootfs not detached");
            }
        }
        Err(error) => tracing::warn!(id = args.id, %error, "rootfs not unmounted"),
    }
}

/// The pid that init had; 0 if none was written.
fn pid(bundle: &Path) -> u32 {
    let written = read_pid_file(&bundle.join("init.pid")).ok();
    written.as_deref().and_then(parse_pid).map_or(0, i32::cast_unsigned)
}
