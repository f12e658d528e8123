//! The one place where the two protobuf worlds meet: what the library and the shims speak
//! (rust-protobuf), and what gRPC speaks here (prost). Nothing else names both.

use runtime_proto::{
    any, events, options,
    protobuf::{self, Message},
    task::Status,
    types,
};
use runtime_v2::{Exit, ProcessInfo, ProcessState};

use crate::api;

/// An `Any` on its way to a shim.
pub(crate) fn any_in(any: api::Any) -> types::Any {
    any::raw(&any.type_url, any.value)
}

/// An `Any` on its way to a client.
pub(crate) fn any_out(any: types::Any) -> api::Any {
    api::Any { type_url: any.type_url, value: any.value }
}

/// What is known of a runtime, on its way to a client.
///
/// # Errors
/// When it is larger than a message can be.
pub(crate) fn runtime_info_out(info: &types::RuntimeInfo) -> protobuf::Result<api::Any> {
    any::pack(info).map(any_out)
}

fn time_in(at: api::Timestamp) -> types::Timestamp {
    let mut time = types::Timestamp::new();
    (time.seconds, time.nanos) = (at.seconds, at.nanos);
    time
}

fn time_out(at: &types::Timestamp) -> api::Timestamp {
    api::Timestamp { seconds: at.seconds, nanos: at.nanos }
}

/// This moment.
pub(crate) fn now() -> api::Timestamp {
    time_out(&types::Timestamp::now())
}

/// Mounts on their way to a shim.
pub(crate) fn mounts_in(mounts: Vec<api::Mount>) -> Vec<types::Mount> {
    let one = |mount: api::Mount| {
        let mut converted = types::Mount::new();
        (converted.type_, converted.source) = (mount.r#type, mount.source);
        (converted.target, converted.options) = (mount.target, mount.options);
        converted
    };
    mounts.into_iter().map(one).collect()
}

/// Mounts on their way to containerd.
pub(crate) fn mounts_out(mounts: Vec<types::Mount>) -> Vec<api::Mount> {
    let one = |mount: types::Mount| api::Mount {
        r#type: mount.type_,
        source: mount.source,
        target: mount.target,
        options: mount.options,
    };
    mounts.into_iter().map(one).collect()
}

/// The end of a process, for Wait.
pub(crate) fn wait_out(exit: &Exit) -> api::tasks::WaitResponse {
    let exited_at = exit.at.as_ref().map(time_out);
    api::tasks::WaitResponse { exit_status: exit.status, exited_at }
}

/// The end of a process, for Delete and DeleteProcess.
pub(crate) fn delete_out(id: String, exit: &Exit) -> api::tasks::DeleteResponse {
    let exited_at = exit.at.as_ref().map(time_out);
    api::tasks::DeleteResponse { id, pid: exit.pid, exit_status: exit.status, exited_at }
}

fn status_out(status: Status) -> api::Status {
    match status {
        Status::UNKNOWN => api::Status::Unknown,
        Status::CREATED => api::Status::Created,
        Status::RUNNING => api::Status::Running,
        Status::STOPPED => api::Status::Stopped,
        Status::PAUSED => api::Status::Paused,
        Status::PAUSING => api::Status::Pausing,
    }
}

/// The name of a status, for people.
pub(crate) fn status_name(status: Status) -> &'static str {
    match status {
        Status::UNKNOWN => "unknown",
        Status::CREATED => "created",
        Status::RUNNING => "running",
        Status::STOPPED => "stopped",
        Status::PAUSED => "paused",
        Status::PAUSING => "pausing",
    }
}

/// What a shim says about a process.
pub(crate) fn process_out(id: String, state: ProcessState) -> api::Process {
    let (exit_status, exited_at) = match &state.exit {
        Some(exit) => (exit.status, exit.at.as_ref().map(time_out)),
        None => (0, None),
    };
    api::Process {
        id,
        pid: state.pid,
        status: status_out(state.status).into(),
        stdin: state.stdio.stdin,
        stdout: state.stdio.stdout,
        stderr: state.stdio.stderr,
        terminal: state.stdio.terminal,
        exit_status,
        exited_at,
    }
}

/// A process as listed.
pub(crate) fn pid_out(process: ProcessInfo) -> api::ProcessInfo {
    api::ProcessInfo { pid: process.pid, info: process.info.map(any_out) }
}

/// An event on its way to containerd.
pub(crate) fn envelope_out(envelope: events::Envelope) -> api::events::Envelope {
    api::events::Envelope {
        timestamp: envelope.timestamp.as_ref().map(time_out),
        namespace: envelope.namespace,
        topic: envelope.topic,
        event: envelope.event.into_option().map(any_out),
    }
}

/// An event that containerd tells of.
pub(crate) fn envelope_in(envelope: api::events::Envelope) -> events::Envelope {
    let mut converted = events::Envelope::new();
    converted.timestamp = envelope.timestamp.map(time_in).into();
    (converted.namespace, converted.topic) = (envelope.namespace, envelope.topic);
    converted.event = envelope.event.map(any_in).into();
    converted
}

/// What of a task's options this daemon acts on itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskOptions {
    /// Directory of a checkpoint to restore.
    pub(crate) image_path: String,
    /// Task API of the sandbox, from clients older than the fields of the request.
    pub(crate) api_address: String,
    /// Its version.
    pub(crate) api_version: u32,
}

/// Reads the options of a task; `None` if they are not those of the runc shim.
///
/// # Errors
/// When they claim to be and are not.
pub(crate) fn task_options(sent: &api::Any) -> Result<Option<TaskOptions>, String> {
    let packed = any_in(sent.clone());
    let read = any::unpack::<options::OptionsMessage>(&packed).map_err(|e| e.to_string())?;
    Ok(read.map(|mut options| TaskOptions {
        image_path: options.take_criu_image_path(),
        api_address: options.take_task_api_address(),
        api_version: options.task_api_version,
    }))
}

/// Where a checkpoint shall be written, if the client names a place; `None` if these are not
/// options of a checkpoint.
///
/// # Errors
/// When they claim to be and are not.
pub(crate) fn checkpoint_path(sent: &api::Any) -> Result<Option<String>, String> {
    let packed = any_in(sent.clone());
    let read = any::unpack::<options::CheckpointOptions>(&packed).map_err(|e| e.to_string())?;
    Ok(read.map(|mut options| options.take_image_path()))
}

/// Encodes an `Any` itself, as checkpoints keep the spec.
///
/// # Errors
/// When it is larger than a message can be.
pub(crate) fn any_bytes(any: api::Any) -> Result<Vec<u8>, String> {
    any_in(any).write_to_bytes().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_runc_shim_are_told_from_others() {
        let sent = |url: &str, value: &[u8]| api::Any { type_url: url.into(), value: value.into() };
        // Fields 10, 12 and 13.
        let bytes = b"\x52\x02/c\x62\x02/a\x68\x03";
        let read = task_options(&sent("containerd.runc.v1.Options", bytes)).unwrap().unwrap();
        assert_eq!(read.image_path, "/c");
        assert_eq!((read.api_address.as_str(), read.api_version), ("/a", 3));
        assert_eq!(task_options(&sent("kata.Options", bytes)), Ok(None));
        assert!(task_options(&sent("containerd.runc.v1.Options", b"\xff")).is_err());
    }

    #[test]
    fn an_event_survives_the_way_in_and_out() {
        let event = api::events::Envelope {
            timestamp: Some(api::Timestamp { seconds: 5, nanos: 7 }),
            namespace: "ns".into(),
            topic: "/tasks/exit".into(),
            event: Some(api::Any { type_url: "t".into(), value: b"v".to_vec() }),
        };
        assert_eq!(envelope_out(envelope_in(event.clone())), event);
    }
}
