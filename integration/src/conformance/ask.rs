//! One call: the message that goes to the shim, and what came back.

use std::time::Duration;

use containerd_shim_protos::api;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::{CheckpointOptions, Options};
use serde_json::json;

use super::script::{Call, Program};
use crate::bundle::Bundle;
use crate::failure::{Failure, Result};
use crate::shim::runc_options;
use crate::spec;
use crate::stdio::Stdio;
use crate::task::{Answer, CallError, TaskClient, create_request};

/// Longer than any call takes that is answered at all, those that wait for output included.
const PATIENCE: Duration = Duration::from_secs(40);

/// More than one message may have.
const TOO_MUCH: usize = 5 << 20;

/// A message on its way.
#[derive(Debug)]
pub(super) enum Ask {
    State(api::StateRequest),
    Create(api::CreateTaskRequest),
    Start(api::StartRequest),
    Delete(api::DeleteRequest),
    Pids(api::PidsRequest),
    Pause(api::PauseRequest),
    Resume(api::ResumeRequest),
    Checkpoint(api::CheckpointTaskRequest),
    Kill(api::KillRequest),
    Exec(api::ExecProcessRequest),
    Resize(api::ResizePtyRequest),
    CloseIo(api::CloseIORequest),
    Update(api::UpdateTaskRequest),
    Wait(api::WaitRequest),
    Stats(api::StatsRequest),
    Connect(api::ConnectRequest),
    Shutdown(api::ShutdownRequest),
    /// A method, or a service, that there is not.
    Unknown {
        service: Option<String>,
        method: String,
    },
    /// Bytes that are no message, for a method.
    Undecodable(String),
    Oversize,
}

/// What came back.
#[derive(Debug)]
pub(super) enum Reply {
    Empty,
    Pid(u32),
    State(api::StateResponse),
    Deleted(api::DeleteResponse),
    Pids(api::PidsResponse),
    Exit(api::WaitResponse),
    Stats(api::StatsResponse),
    Connected(api::ConnectResponse),
}

/// What a create needs besides its line.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    pub(super) bundle: &'a Bundle,
    pub(super) stdio: &'a Stdio,
    /// The OCI runtime's path.
    pub(super) runtime: &'a str,
}

impl Ask {
    /// The message of a line for the process with these ids.
    pub(super) fn plain(call: &Call, id: &str, exec: &str) -> Result<Self> {
        macro_rules! to {
            ($kind:ident, $message:ident $(, $field:ident = $value:expr)*) => {{
                let mut message = api::$message::new();
                message.id = id.to_owned();
                $( message.$field = $value; )*
                Self::$kind(message)
            }};
        }
        let exec_id = exec.to_owned();
        Ok(match call.verb.as_str() {
            "state" => to!(State, StateRequest, exec_id = exec_id),
            "start" => to!(Start, StartRequest, exec_id = exec_id),
            "delete" => to!(Delete, DeleteRequest, exec_id = exec_id),
            "pids" => to!(Pids, PidsRequest),
            "pause" => to!(Pause, PauseRequest),
            "resume" => to!(Resume, ResumeRequest),
            "checkpoint" => to!(Checkpoint, CheckpointTaskRequest, options = checkpoint(call)?),
            "kill" => {
                let signal = call.words.first().and_then(|word| word.parse().ok());
                let signal = signal.ok_or_else(|| Failure::new("kill without a signal"))?;
                to!(Kill, KillRequest, exec_id = exec_id, signal = signal, all = call.has("all"))
            }
            "resize" => to!(Resize, ResizePtyRequest, exec_id = exec_id, width = 80, height = 24),
            "closeio" => to!(CloseIo, CloseIORequest, exec_id = exec_id, stdin = true),
            "update" => to!(Update, UpdateTaskRequest, resources = resources(call)?),
            "wait" => to!(Wait, WaitRequest, exec_id = exec_id),
            "stats" => to!(Stats, StatsRequest),
            "connect" => to!(Connect, ConnectRequest),
            "shutdown" => to!(Shutdown, ShutdownRequest),
            "method" => Self::Unknown { service: None, method: call.target.container.clone() },
            "service" => Self::Unknown {
                service: Some(call.target.container.clone()),
                method: "State".to_owned(),
            },
            "undecodable" => Self::Undecodable(call.target.container.clone()),
            "oversize" => Self::Oversize,
            other => return Err(Failure::new(format!("{other} is not that plain"))),
        })
    }

    /// The message of a create line.
    pub(super) fn create(call: &Call, ground: &Ground<'_>) -> Result<Self> {
        let mut request = create_request(ground.bundle, ground.stdio);
        let mut options = Options::new();
        options.binary_name = call.flag("runtime").unwrap_or(ground.runtime).to_owned();
        let mut options = runc_options(&options)?;
        match call.flag("options") {
            Some("strange") => options.type_url = "no.such.Options".to_owned(),
            Some("empty") => options.value.clear(),
            _ => {}
        }
        request.options = MessageField::some(options);
        if let Some(bundle) = call.flag("bundle") {
            request.bundle = bundle.to_owned();
        }
        if let Some(id) = call.flag("id") {
            request.id = id.to_owned();
        }
        if call.has("+checkpoint") {
            request.checkpoint = "/no/such/checkpoint".to_owned();
        }
        Ok(Self::Create(request))
    }

    /// The message of an exec line.
    pub(super) fn exec(call: &Call, id: &str, exec: &str, stdio: &Stdio) -> Self {
        let words: Vec<&str> = call.words.iter().map(String::as_str).collect();
        let process = spec::process(
            &Program::read(&words).argv.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        let mut any = Any::new();
        any.type_url = "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned();
        any.value = match words.as_slice() {
            ["+garbage"] => b"{no json".to_vec(),
            _ => process.to_string().into_bytes(),
        };
        let mut request = api::ExecProcessRequest::new();
        request.id = id.to_owned();
        request.exec_id = exec.to_owned();
        request.terminal = stdio.terminal;
        request.stdin.clone_from(&stdio.stdin);
        request.stdout.clone_from(&stdio.stdout);
        request.stderr.clone_from(&stdio.stderr);
        if !call.has("+nothing") {
            request.spec = MessageField::some(any);
        }
        Self::Exec(request)
    }

    /// Sends it and waits for the answer.
    pub(super) async fn send(self, tasks: TaskClient) -> Answer<Reply> {
        let to = Sender { tasks };
        match self {
            Self::State(m) => to.call("State", &m).await.map(Reply::State),
            Self::Create(m) => {
                to.call("Create", &m).await.map(|r: api::CreateTaskResponse| Reply::Pid(r.pid))
            }
            Self::Start(m) => {
                to.call("Start", &m).await.map(|r: api::StartResponse| Reply::Pid(r.pid))
            }
            Self::Delete(m) => to.call("Delete", &m).await.map(Reply::Deleted),
            Self::Pids(m) => to.call("Pids", &m).await.map(Reply::Pids),
            Self::Pause(m) => to.empty("Pause", &m).await,
            Self::Resume(m) => to.empty("Resume", &m).await,
            Self::Checkpoint(m) => to.empty("Checkpoint", &m).await,
            Self::Kill(m) => to.empty("Kill", &m).await,
            Self::Exec(m) => to.empty("Exec", &m).await,
            Self::Resize(m) => to.empty("ResizePty", &m).await,
            Self::CloseIo(m) => to.empty("CloseIO", &m).await,
            Self::Update(m) => to.empty("Update", &m).await,
            Self::Wait(m) => to.call("Wait", &m).await.map(Reply::Exit),
            Self::Stats(m) => to.call("Stats", &m).await.map(Reply::Stats),
            Self::Connect(m) => to.call("Connect", &m).await.map(Reply::Connected),
            Self::Shutdown(m) => match to.empty("Shutdown", &m).await {
                // A shim that ends may be gone before its answer: to the manager that is one, too.
                Err(CallError::Closed) => Ok(Reply::Empty),
                other => other,
            },
            Self::Unknown { service, method } => {
                let tasks = match service {
                    Some(service) => to.tasks.speaking(&service),
                    None => to.tasks,
                };
                Sender { tasks }.empty(&method, &api::Empty::new()).await
            }
            Self::Undecodable(method) => to.empty(&method, &unknown_bytes()).await,
            Self::Oversize => {
                let mut message = api::ExecProcessRequest::new();
                message.stdin = "x".repeat(TOO_MUCH);
                to.empty("Exec", &message).await
            }
        }
    }
}

struct Sender {
    tasks: TaskClient,
}

impl Sender {
    async fn call<R: Message>(&self, method: &str, message: &impl Message) -> Answer<R> {
        self.tasks.call(method, message, PATIENCE).await
    }

    async fn empty(&self, method: &str, message: &impl Message) -> Answer<Reply> {
        self.call::<api::Empty>(method, message).await.map(|_| Reply::Empty)
    }
}

/// A message whose first field, the id in every request, is no text.
fn unknown_bytes() -> api::Empty {
    let mut message = api::Empty::new();
    message.special_fields.mut_unknown_fields().add_length_delimited(1, vec![0xff, 0xfe]);
    message
}

fn checkpoint(call: &Call) -> Result<MessageField<Any>> {
    let mut options = CheckpointOptions::new();
    let mut any = Any::new();
    any.type_url = "containerd.runc.v1.CheckpointOptions".to_owned();
    match call.flag("options") {
        None => return Ok(MessageField::none()),
        Some("strange") => any.type_url = "no.such.Options".to_owned(),
        Some(_) => {
            options.open_tcp = true;
            options.external_unix_sockets = true;
            options.terminal = true;
            options.file_locks = true;
            options.exit = true;
            options.empty_namespaces = vec!["network".to_owned()];
        }
    }
    any.value = options.write_to_bytes()?;
    Ok(MessageField::some(any))
}

fn resources(call: &Call) -> Result<MessageField<Any>> {
    let text = match call.words.first().map(String::as_str) {
        Some("memory") => json!({ "memory": { "limit": 64 << 20 } }).to_string(),
        Some("null") => "null".to_owned(),
        Some("garbage") => "{no json".to_owned(),
        Some("empty") => "{}".to_owned(),
        Some("nothing") => return Ok(MessageField::none()),
        _ => return Err(Failure::new("update of what?")),
    };
    let mut any = Any::new();
    any.type_url = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".to_owned();
    any.value = text.into_bytes();
    Ok(MessageField::some(any))
}
