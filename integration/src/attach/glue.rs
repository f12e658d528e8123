//! The calls of the plugin.

use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use runtime_proto::manager::{
    Container, CreateRequest, CreateResponse, DeleteRequest, DeleteResponse, GetRequest,
    GetResponse, InfoRequest, InfoResponse, ListRequest, ListResponse, LoadRequest, LoadResponse,
    PROTOCOL, SERVICE, Task,
};

use crate::containerd::Containerd;
use crate::deadline::HANG;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::spec::Spec;
use crate::task::{Answer, CallError, TaskClient, V3};

/// Where containerd's plugin has its bundles, below its state and root directories.
const PLUGIN: &str = "io.containerd.runtime.v2.task";

/// What the plugin says at `Load`.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The request, to be made odd by tests that need that.
    pub request: LoadRequest,
}

impl Surroundings {
    /// Those of a containerd that is, or was, running; with its records of containers, which it is asked for.
    ///
    /// # Errors
    /// When it does not tell its records.
    pub async fn of(fixture: &Fixture, containerd: &Containerd<'_>) -> Result<Self> {
        let bin = containerd.go_shim();
        let mut surroundings = Self::at(containerd.dir(), &containerd.address());
        surroundings.request.containerd_binary =
            bin.with_file_name("containerd").display().to_string();
        let ids = containerd.must(&["containers", "ls", "--quiet"]).await?;
        let containers = ids.split_whitespace().map(|id| {
            let mut container = Container::new();
            fixture.namespace().clone_into(&mut container.namespace);
            id.clone_into(&mut container.id);
            "io.containerd.runc.v2".clone_into(&mut container.runtime);
            container
        });
        surroundings.request.containers = containers.collect();
        Ok(surroundings)
    }

    /// Those of a containerd that has its directories here.
    #[must_use]
    pub fn at(dir: &Path, address: &Path) -> Self {
        let plugin = |name: &str| dir.join(name).join(PLUGIN).display().to_string();
        let mut request = LoadRequest::new();
        (request.protocol_major, request.protocol_minor) = (PROTOCOL.major, PROTOCOL.minor);
        (request.state, request.root) = (plugin("state"), plugin("root"));
        request.grpc_address = address.display().to_string();
        request.ttrpc_address = format!("{}.ttrpc", address.display());
        "containerd".clone_into(&mut request.containerd_binary);
        "2.4.2".clone_into(&mut request.containerd_version);
        Self { request }
    }

    /// The directory of bundles of a namespace.
    #[must_use]
    pub fn bundles(&self, namespace: &str) -> PathBuf {
        Path::new(&self.request.state).join(namespace)
    }
}

/// One connection of the plugin.
#[derive(Debug, Clone)]
pub struct Glue {
    manager: TaskClient,
    /// The task service, over the same connection.
    pub tasks: TaskClient,
}

impl Glue {
    /// Connects on behalf of a namespace; an empty one is none.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn connect(address: &Path, namespace: &str) -> Result<Self> {
        let address = format!("unix://{}", address.display());
        let manager = TaskClient::connect(&address, SERVICE, namespace).await?;
        let tasks = manager.speaking(V3);
        Ok(Self { manager, tasks })
    }

    /// Any call of the manager's service.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn call<R: Message>(&self, method: &str, request: &impl Message) -> Answer<R> {
        self.manager.call(method, request, HANG).await
    }

    /// Tells the manager its surroundings.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn load(&self, surroundings: &Surroundings) -> Answer<LoadResponse> {
        self.call("Load", &surroundings.request).await
    }

    /// Creates a task.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn create(&self, request: &CreateRequest) -> Answer<Task> {
        let answer: CreateResponse = self.call("Create", request).await?;
        Ok(answer.task.unwrap_or_default())
    }

    /// Creates and starts a task.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn run(&self, request: &CreateRequest) -> Answer<Task> {
        let task = self.create(request).await?;
        self.tasks.start(&request.id, "").await?;
        Ok(task)
    }

    /// One task.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn get(&self, id: &str) -> Answer<Task> {
        let mut request = GetRequest::new();
        id.clone_into(&mut request.id);
        let answer: GetResponse = self.call("Get", &request).await?;
        Ok(answer.task.unwrap_or_default())
    }

    /// The ids of all tasks of the namespace.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn list(&self) -> Answer<Vec<String>> {
        let answer: ListResponse = self.call("List", &ListRequest::new()).await?;
        Ok(answer.tasks.into_iter().map(|task| task.id).collect())
    }

    /// Deletes a task.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn delete(&self, id: &str) -> Answer<DeleteResponse> {
        let mut request = DeleteRequest::new();
        id.clone_into(&mut request.id);
        self.call("Delete", &request).await
    }

    /// Asks a runtime about itself.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn info(&self, runtime: &str) -> Answer<InfoResponse> {
        let mut request = InfoRequest::new();
        runtime.clone_into(&mut request.runtime);
        self.call("Info", &request).await
    }

    /// Kills a task, waits for its end, deletes it.
    ///
    /// # Errors
    /// What the manager says.
    pub async fn remove(&self, id: &str) -> Answer<DeleteResponse> {
        match self.tasks.kill(id, "", 9).await {
            Ok(()) => drop(self.tasks.wait(id, "").await?),
            // It had ended before.
            Err(error) if error.code() == Some(ttrpc::Code::NOT_FOUND) => {}
            Err(error) => return Err(error),
        }
        self.delete(id).await
    }
}

/// What containerd says of a container it has on record: its spec, as `ctr` prints it, and the default runtime.
///
/// # Errors
/// When there is no such container.
pub async fn create_request(containerd: &Containerd<'_>, id: &str) -> Result<CreateRequest> {
    let spec = containerd.must(&["containers", "info", "--spec", id]).await?;
    let mut any = Any::new();
    "types.containerd.io/opencontainers/runtime-spec/1/Spec".clone_into(&mut any.type_url);
    any.value = spec.into_bytes();
    let mut request = CreateRequest::new();
    id.clone_into(&mut request.id);
    request.spec = Some(any).into();
    "io.containerd.runc.v2".clone_into(&mut request.runtime);
    Ok(request)
}

/// A container of the test's own, which no containerd has on record: its root filesystem lies where it is, so that there is
/// nothing to mount.
///
/// # Errors
/// When its root filesystem cannot be made.
pub fn own_request(fixture: &Fixture, name: &str, spec: Spec) -> Result<CreateRequest> {
    let id = fixture.id(name);
    fixture.expect_socket(&fixture.address(), &id);
    let rootfs = fixture.rootfs()?.display().to_string();
    let spec =
        spec.set("/root", "path", rootfs.into()).env(&fixture.mark()).cgroup(&format!("/{id}"));
    let mut request = CreateRequest::new();
    let mut any = Any::new();
    "types.containerd.io/opencontainers/runtime-spec/1/Spec".clone_into(&mut any.type_url);
    any.value = spec.to_json();
    (request.id, request.spec) = (id, Some(any).into());
    "io.containerd.runc.v2".clone_into(&mut request.runtime);
    Ok(request)
}

/// The code of a refusal.
///
/// # Errors
/// When there was none.
#[track_caller]
pub fn code_of<T>(answer: Answer<T>) -> Result<ttrpc::Code> {
    match answer {
        Ok(_) => Err(Failure::new("it is not refused")),
        Err(CallError::Status { code, .. }) => Ok(code),
        Err(other) => Err(other.into()),
    }
}
