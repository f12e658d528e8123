//! Execs: reserving one, starting it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use runtime_proto::{
    errdefs::Code,
    events::{TaskExecAdded, TaskExecStarted},
};
use serde_json::value::{RawValue, to_raw_value};

use super::{Container, SIGKILL, lock};
use crate::{
    error::{Error, Result},
    files,
    io::ProcessIo,
    process::{
        Process, Stdio, adopt,
        state::{ExecEvent, ExecState, Verb},
    },
    reaper::{Claim, Exit, ExitWaiter},
    runc::{ExecArgs, ProcessStreams},
};

/// A process to put into a container.
#[derive(Debug)]
pub struct ExecRequest {
    /// Its id within the container.
    pub id: String,
    /// Its streams.
    pub stdio: Stdio,
    /// The OCI process, in JSON.
    pub spec: Vec<u8>,
}

impl Container {
    /// Reserves an exec. Nothing runs before [`Container::start_exec`].
    ///
    /// # Errors
    /// AlreadyExists when the id is in use, FailedPrecondition when the container is not in a
    /// state for new processes, InvalidArgument when the spec is no OCI process.
    pub fn exec(&self, request: ExecRequest) -> Result<()> {
        self.init.snapshot().state.allows(Verb::Exec)?;
        let spec = with_terminal(&request.spec, request.stdio.terminal)?;
        let exec = Process::new(&request.id, request.stdio, ExecState::Created);
        {
            let mut execs = lock(&self.execs);
            // The exit of an exec of the container's own name would be taken for that of init.
            if execs.contains_key(&request.id) || request.id == self.id {
                return Err(Error::new(Code::AlreadyExists, format!("id {}", request.id)));
            }
            execs.insert(request.id.clone(), Arc::new(exec));
        }
        lock(&self.exec_specs).insert(request.id.clone(), spec);
        let mut event = TaskExecAdded::new();
        event.container_id.clone_from(&self.id);
        event.exec_id = request.id;
        self.shared.publisher.publish(&event);
        Ok(())
    }

    /// Starts a reserved exec, publishes that, and returns its pid.
    ///
    /// # Errors
    /// NotFound for an unknown exec; FailedPrecondition unless it is waiting to be started in a
    /// container whose init lives; what the runtime says.
    pub async fn start_exec(self: &Arc<Self>, id: &str) -> Result<u32> {
        let exec = self.exec_process(id)?;
        let _op = exec.op.lock().await;
        // The exec's end, however soon, is published when the gate opens: after its start.
        let _gate = exec.start_gate.lock().await;
        exec.snapshot().state.allows(Verb::Start)?;
        self.with_ledger(|ledger| ledger.begin_exec(&self.id))?;
        let launched = match self.init.snapshot().state.allows(Verb::Exec) {
            Ok(()) => self.while_alive(self.launch_exec(&exec)).await,
            Err(refused) => {
                self.with_ledger(crate::exits::Ledger::end_exec);
                return Err(refused.into());
            }
        };
        match launched {
            Ok((pid, exit)) => {
                exec.update(|exec| exec.state = exec.state.after(ExecEvent::Started));
                let mut event = TaskExecStarted::new();
                event.container_id.clone_from(&self.id);
                id.clone_into(&mut event.exec_id);
                event.pid = pid;
                self.shared.publisher.publish(&event);
                tokio::spawn(Arc::clone(self).watch_exec(Arc::clone(&exec), exit));
                self.end_if_late(&exec).await;
                Ok(pid)
            }
            Err(error) => {
                exec.update(|exec| {
                    exec.state = exec.state.after(ExecEvent::StartFailed);
                    // Nobody shall wait for the end of what never began.
                    exec.exit = Some(Exit::never());
                });
                self.with_ledger(crate::exits::Ledger::end_exec);
                Err(error.of_a_part())
            }
        }
    }

    /// Ends an exec that has come to be while init's leftovers were being ended, and was not among
    /// them yet: the end of init, which is told after that of every exec, would wait for it.
    async fn end_if_late(&self, exec: &Process<ExecState>) {
        if !self.outlives_init || !lock(&self.ledger).has_init_exited() {
            return;
        }
        if let Err(error) = exec.signal(SIGKILL) {
            // Mostly because it was among them after all.
            tracing::debug!(id = self.id, exec = exec.id, %error, "an exec after init");
        }
        self.kill_leftovers().await;
    }

    /// Has the runtime start an exec, and adopts it. On failure nothing of it is left.
    async fn launch_exec(&self, exec: &Process<ExecState>) -> Result<(u32, ExitWaiter)> {
        let spec = lock(&self.exec_specs).remove(&exec.id).unwrap_or_default();
        let process =
            SpecFile::write(self.bundle.join(format!("{}.process.json", exec.id)), &spec)?;
        drop(spec);
        let pid_file = self.exec_pid_file(&exec.id);
        super::create::remove_if_present(&pid_file)?;
        let claim = self.shared.reaper.claim();
        let (io, child) = ProcessIo::open(&self.stdio_request(&exec.id, &exec.stdio)).await?;
        let args = ExecArgs { process: &process.0, pid_file: &pid_file };
        let launched = async {
            self.runc.exec(&self.id, &args, ProcessStreams { child, io: &io }).await?;
            io.attach().await?;
            adopt(&claim, &pid_file)
        };
        match launched.await {
            Ok((pid, adopted)) => {
                exec.set_io(io);
                exec.set_handle(adopted.handle);
                exec.update(|exec| exec.pid = pid);
                Ok((pid, adopted.exit))
            }
            Err(error) => {
                io.close().await;
                end_stray(&claim, &pid_file);
                let _ = std::fs::remove_file(&pid_file);
                Err(error)
            }
        }
    }
}

/// Ends the process that a runtime started in spite of failing, if it is one.
fn end_stray(claim: &Claim, pid_file: &Path) {
    if let Ok((pid, adopted)) = adopt(claim, pid_file)
        && let Some(handle) = adopted.handle
    {
        tracing::warn!(pid, "the runtime failed and left a process, which is killed");
        let _ = handle.send(nix::sys::signal::Signal::SIGKILL as i32);
    }
}

/// The OCI process with the terminal that the request asks for, and everything else in it as it
/// came: nothing that the runtime is to read passes through our idea of numbers and text.
pub(crate) fn with_terminal(spec: &[u8], terminal: bool) -> Result<Vec<u8>> {
    let invalid = |why: &dyn std::fmt::Display| {
        Error::new(Code::InvalidArgument, format!("exec spec is no OCI process: {why}"))
    };
    let terminal = to_raw_value(&terminal).map_err(|error| invalid(&error))?;
    let mut process: BTreeMap<String, &RawValue> =
        serde_json::from_slice(spec).map_err(|error| invalid(&error))?;
    process.insert("terminal".into(), &terminal);
    serde_json::to_vec(&process).map_err(|error| invalid(&error))
}

/// The file from which the runtime reads an OCI process. It holds the environment, secrets
/// included: readable for root only, and gone as soon as it was read.
struct SpecFile(PathBuf);

impl SpecFile {
    fn write(path: PathBuf, spec: &[u8]) -> Result<Self> {
        // Removed also when it is half written.
        let file = Self(path);
        files::write(&file.0, spec, 0o600)
            .map_err(|error| Error::io(format!("write {}", file.0.display()), error))?;
        Ok(file)
    }
}

impl Drop for SpecFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_about_the_terminal() {
        let spec = with_terminal(br#"{"terminal":true,"args":["a"]}"#, false).unwrap();
        assert_eq!(spec, br#"{"args":["a"],"terminal":false}"#);
        let odd = br#"{"a": 100000000000000000001, "b": [1e400, "\u00e9"], "c": {"d": 1.10}}"#;
        let spec = String::from_utf8(with_terminal(odd, true).unwrap()).unwrap();
        for part in ["100000000000000000001", r#"[1e400, "\u00e9"]"#, r#"{"d": 1.10}"#] {
            assert!(spec.contains(part), "{spec}");
        }
        for broken in [&b""[..], b"null", b"[]", b"{"] {
            let error = with_terminal(broken, true).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
        }
    }
}
