//! Containers and their tasks, as requests of the manager's own protocol and of containerd's gRPC, which has no types here:
//! a few fields are enough.

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use runtime_proto::manager::{Container, CreateRequest, Mount};
use ttrpc::Code;

use super::contender::Runtime;
use crate::container::with_runtime;
use crate::failure::{Context, Failure, Result};
use crate::fixture::Fixture;
use crate::grpc::{Grpc, field};
use crate::spec::Spec;

/// The runtime of every container, by its name.
const RUNTIME: &str = "io.containerd.runc.v2";

/// The type of specs on record.
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// A container: its spec, and what its root filesystem is mounted from, if it is not there already.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// Its id.
    pub(super) id: String,
    spec: Any,
    mounts: Vec<Mount>,
    options: Any,
}

impl Made {
    /// One whose root filesystem is mounted for it, as snapshotters have it.
    pub(super) fn mounted(
        fixture: &Fixture,
        id: &str,
        spec: &Spec,
        runtime: &Runtime,
    ) -> Result<Self> {
        let mut mount = Mount::new();
        "bind".clone_into(&mut mount.type_);
        mount.source = fixture.rootfs()?.display().to_string();
        mount.options = vec!["rbind".to_owned(), "rw".to_owned()];
        let made = Self::plain(fixture, id, spec, runtime)?;
        Ok(Self { mounts: vec![mount], ..made })
    }

    /// One in a root filesystem that it shares with others.
    pub(super) fn sharing(
        fixture: &Fixture,
        id: &str,
        spec: &Spec,
        runtime: &Runtime,
    ) -> Result<Self> {
        let rootfs = fixture.rootfs()?.display().to_string();
        let spec = spec.clone().set("/root", "path", rootfs.into());
        Self::plain(fixture, id, &spec, runtime)
    }

    fn plain(fixture: &Fixture, id: &str, spec: &Spec, runtime: &Runtime) -> Result<Self> {
        let marked = spec.clone().env(&fixture.mark()).cgroup(&format!("/{id}"));
        let mut spec = Any::new();
        SPEC.clone_into(&mut spec.type_url);
        spec.value = marked.to_json();
        let options = with_runtime(&runtime.binary)?;
        Ok(Self { id: id.to_owned(), spec, mounts: Vec::new(), options })
    }

    /// For the manager.
    pub(super) fn request(&self) -> CreateRequest {
        let mut request = CreateRequest::new();
        request.id.clone_from(&self.id);
        request.spec = Some(self.spec.clone()).into();
        request.rootfs.clone_from(&self.mounts);
        RUNTIME.clone_into(&mut request.runtime);
        request.task_options = Some(self.options.clone()).into();
        request
    }

    /// Puts it on record in containerd.
    pub(super) async fn record(&self, client: &Grpc, namespace: &str) -> Result {
        let spec = self.spec.write_to_bytes()?;
        let runtime = field(1, RUNTIME.as_bytes());
        let container = [field(1, self.id.as_bytes()), field(4, &runtime), field(5, &spec)];
        let request = field(1, &container.concat());
        call(client, "containers.v1.Containers/Create", namespace, &request).await
    }

    /// Takes it off record.
    pub(super) async fn strike(&self, client: &Grpc, namespace: &str) -> Result {
        let request = field(1, self.id.as_bytes());
        call(client, "containers.v1.Containers/Delete", namespace, &request).await
    }

    /// Creates its task.
    pub(super) async fn create(&self, client: &Grpc, namespace: &str) -> Result {
        let mut request = field(1, self.id.as_bytes());
        for mount in &self.mounts {
            let mut fields =
                [field(1, mount.type_.as_bytes()), field(2, mount.source.as_bytes())].concat();
            for option in &mount.options {
                fields.extend(field(4, option.as_bytes()));
            }
            request.extend(field(3, &fields));
        }
        request.extend(field(9, &self.options.write_to_bytes()?));
        call(client, "tasks.v1.Tasks/Create", namespace, &request).await
    }

    /// Kills its task, waits for its end, deletes it.
    pub(super) async fn remove(&self, client: &Grpc, namespace: &str) -> Result {
        /// SIGKILL as a field.
        const KILL: [u8; 2] = [3 << 3, 9];
        let id = field(1, self.id.as_bytes());
        let kill = [&id[..], &KILL].concat();
        call(client, "tasks.v1.Tasks/Kill", namespace, &kill).await?;
        call(client, "tasks.v1.Tasks/Wait", namespace, &id).await?;
        call(client, "tasks.v1.Tasks/Delete", namespace, &id).await
    }
}

/// A record, as the manager is told of it.
pub(super) fn known(namespace: &str, id: &str) -> Container {
    let mut container = Container::new();
    namespace.clone_into(&mut container.namespace);
    id.clone_into(&mut container.id);
    RUNTIME.clone_into(&mut container.runtime);
    container
}

/// A call of one of containerd's services, which has to succeed.
pub(super) async fn call(client: &Grpc, method: &str, namespace: &str, request: &[u8]) -> Result {
    let path = format!("/containerd.services.{method}");
    let answer = client.unary(&path, namespace, request).await.context(method)?;
    if answer.code == Code::OK {
        return Ok(());
    }
    Err(Failure::new(format!("{method}: {:?}: {}", answer.code, answer.text)))
}
