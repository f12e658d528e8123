//! Between the messages of the service and the types of the shim.

use std::path::PathBuf;

use runtime_proto::{
    errdefs::Code,
    task::{CreateTaskRequest, DeleteResponse, ExecProcessRequest, StateResponse, Status},
    types,
};

use crate::{
    container::{Container, CreateRequest, Deleted, ExecRequest, View},
    error::{Error, Result},
    mount::Mount,
    process::Stdio,
    publisher::timestamp,
    reaper,
    runc::options::RuncOptions,
};

/// The longest id; it becomes part of file names.
const MAX_ID: usize = 200;

/// A request to make a container, checked.
///
/// # Errors
/// InvalidArgument, naming the field.
pub fn create(mut request: CreateTaskRequest) -> Result<CreateRequest> {
    check_id("container", &request.id)?;
    let bundle = PathBuf::from(std::mem::take(&mut request.bundle));
    if !bundle.is_absolute() {
        let message = format!("bundle {bundle:?} is no absolute path");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let options = RuncOptions::sent(request.options.as_ref())?;
    Ok(CreateRequest {
        id: std::mem::take(&mut request.id),
        bundle,
        rootfs: request.rootfs.drain(..).map(mount_from_proto).collect(),
        stdio: Stdio {
            stdin: std::mem::take(&mut request.stdin),
            stdout: std::mem::take(&mut request.stdout),
            stderr: std::mem::take(&mut request.stderr),
            terminal: request.terminal,
        },
        checkpoint: std::mem::take(&mut request.checkpoint),
        options,
    })
}

/// A request to add a process, checked.
///
/// # Errors
/// InvalidArgument, naming the field.
pub fn exec(mut request: ExecProcessRequest) -> Result<ExecRequest> {
    check_id("exec", &request.exec_id)?;
    let spec = request.spec.take().map(|any| any.value).unwrap_or_default();
    Ok(ExecRequest {
        id: std::mem::take(&mut request.exec_id),
        stdio: Stdio {
            stdin: std::mem::take(&mut request.stdin),
            stdout: std::mem::take(&mut request.stdout),
            stderr: std::mem::take(&mut request.stderr),
            terminal: request.terminal,
        },
        spec,
    })
}

/// Ids become names of files; managers check them more strictly than this.
fn check_id(what: &str, id: &str) -> Result<()> {
    let wrong = if id.is_empty() {
        "it is empty"
    } else if id.len() > MAX_ID {
        "it is too long"
    } else if id.starts_with(['.', '-']) || id.contains(['/', '\0', '\n']) {
        "it cannot be the name of a file"
    } else {
        return Ok(());
    };
    Err(Error::new(Code::InvalidArgument, format!("invalid {what} id: {wrong}")))
}

/// What State answers.
pub fn state(container: &Container, view: View) -> StateResponse {
    let mut response = StateResponse::new();
    response.id = view.id;
    response.bundle = container.bundle.to_string_lossy().into_owned();
    response.pid = view.pid;
    response.status = view.status.into();
    response.stdin = view.stdio.stdin;
    response.stdout = view.stdio.stdout;
    response.stderr = view.stdio.stderr;
    response.terminal = view.stdio.terminal;
    debug_assert!(view.exit.is_none() || view.status == Status::STOPPED, "who ended is stopped");
    response.exit_status = view.exit.map_or(0, |exit| exit.status);
    let at = view.exit.map_or_else(reaper::never, |exit| exit.at);
    response.exited_at = Some(timestamp(at)).into();
    response
}

/// What Delete answers.
pub fn deleted(deleted: Deleted) -> DeleteResponse {
    let mut response = DeleteResponse::new();
    response.pid = deleted.pid;
    response.exit_status = deleted.exit.status;
    response.exited_at = Some(timestamp(deleted.exit.at)).into();
    response
}

fn mount_from_proto(mut mount: types::Mount) -> Mount {
    Mount {
        type_: std::mem::take(&mut mount.type_),
        source: std::mem::take(&mut mount.source),
        target: std::mem::take(&mut mount.target),
        options: std::mem::take(&mut mount.options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_lead_out_of_a_bundle() {
        for id in ["", "..", "../x", "a/b", ".hidden", "-f", "a\0b", "a\nb", &"a".repeat(201)] {
            let error = check_id("exec", id).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{id:?}");
        }
        for id in ["a", "a.b_c-d", &"0123456789abcdef".repeat(4)] {
            check_id("exec", id).unwrap();
        }
    }

    #[test]
    fn a_bundle_must_be_absolute() {
        let mut request = CreateTaskRequest::new();
        request.id = "c".into();
        request.bundle = "relative".into();
        let error = create(request).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.to_string().contains("relative"), "{error}");
    }
}
