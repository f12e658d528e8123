//! `-info`: what this runtime is and what its OCI runtime can do.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use protobuf::{Message, MessageField};
use runtime_proto::{
    any::{self, OCI_FEATURES},
    errdefs::Code,
    types::{Any, RuntimeInfo, RuntimeVersion},
};
use tokio::{io::AsyncReadExt, net::unix::pipe, runtime::Builder};

use crate::{
    error::{Error, Result},
    reaper::Reaper,
    runc::options::RuncOptions,
};

/// The name by which containerd knows this runtime.
const NAME: &str = "io.containerd.runc.v2";
/// How long `features` may take; it only prints constants.
const LIMIT: Duration = Duration::from_secs(10);
/// The most that is read of it, in bytes.
const MAX_FEATURES: u64 = 1 << 20;

pub(super) fn info() -> Result<()> {
    let stdin = super::read_stdin()?;
    let invalid = |error| Error::caused(Code::InvalidArgument, "stdin holds no options", error);
    let sent = Any::parse_from_bytes(&stdin).map_err(invalid)?;
    let options = RuncOptions::sent(Some(&sent))?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("make the runtime", error))?;
    let features = runtime.block_on(features(&options))?;
    let mut version = RuntimeVersion::new();
    super::VERSION.clone_into(&mut version.version);
    let mut info = RuntimeInfo::new();
    NAME.clone_into(&mut info.name);
    info.version = MessageField::some(version);
    if !stdin.is_empty() {
        info.options = MessageField::some(sent);
    }
    info.features = MessageField::from_option(features);
    let bytes = info
        .write_to_bytes()
        .map_err(|error| Error::caused(Code::Internal, "encode the answer", error))?;
    super::print(&bytes)
}

/// What the OCI runtime says of itself; nothing if it does not know the question.
async fn features(options: &RuncOptions) -> Result<Option<Any>> {
    let reaper = Reaper::new();
    tokio::spawn(reaper.listen().map_err(|error| Error::io("listen for children", error))?);
    let binary = options.binary();
    let mut command = Command::new(binary);
    command.arg("features").stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let mut child = reaper.spawn(&mut command).map_err(|error| {
        Error::io(format!("call the OCI runtime {binary:?}"), error).with_kind(Code::NotFound)
    })?;
    let mut json = Vec::new();
    let answered = async {
        if let Some(stdout) = child.stdout.take() {
            let mut pipe = pipe::Receiver::from_owned_fd(stdout.into())?.take(MAX_FEATURES);
            pipe.read_to_end(&mut json).await?;
        }
        std::io::Result::Ok(child.ended().await.success())
    };
    let known = matches!(tokio::time::timeout(LIMIT, answered).await, Ok(Ok(true)));
    let parsed: Option<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_slice(&json).ok();
    let Some(parsed) = parsed.filter(|_| known) else {
        let _ = child.kill(nix::sys::signal::Signal::SIGKILL);
        return Ok(None);
    };
    let json = serde_json::to_vec(&parsed)
        .map_err(|error| Error::caused(Code::Internal, "encode features", error))?;
    Ok(Some(any::raw(OCI_FEATURES, json)))
}
