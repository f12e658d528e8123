//! `delete`: cleans up after a shim that is gone, whatever it left and whatever is missing.
//!
//! The manager also runs it after every ordinary delete, when nothing is left at all: so nothing
//! missing is an error here, and everything is told on stderr only.

use std::{
    env,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use protobuf::Message;
use runtime_proto::{errdefs::Code, task::DeleteResponse};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

use super::args::Args;
use crate::{
    error::{Error, Result},
    log::Log,
    mount,
    process::parse_pid,
    publisher::timestamp,
    reaper::Reaper,
    runc::{Runc, options::RuncOptions},
    sys::process,
};

/// What a container that lost its shim is said to have ended with: 128 + SIGKILL.
const KILLED: u32 = 137;
/// How long the runtime may take to kill and forget a container. The manager gives 5 s to all of
/// `delete`; the unmounting is to have some of it.
const RUNTIME: Duration = Duration::from_secs(4);

pub(super) fn delete(args: &Args) -> Result<()> {
    let bundle = bundle(args)?;
    process::become_subreaper().map_err(|error| Error::io("become a subreaper", error))?;
    Log::new(args.debug).install();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("make the runtime", error))?;
    runtime.block_on(clean_up(args, &bundle))?;
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

async fn clean_up(args: &Args, bundle: &Path) -> Result<()> {
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
    if let Err(error) = mount::unmount_recursive(&bundle.join("rootfs")) {
        tracing::warn!(id = args.id, %error, "rootfs not unmounted");
    }
    Ok(())
}

/// The pid that init had; 0 if none was written.
fn pid(bundle: &Path) -> u32 {
    let path = bundle.join("init.pid");
    let written = std::fs::read_to_string(&path).ok();
    written.as_deref().and_then(parse_pid).map_or(0, i32::cast_unsigned)
}
