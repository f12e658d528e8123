//! What clients ask about runtimes: answered for the shims that this daemon would start, which
//! need not be those that containerd finds.

use hyper::{Request, Response};
use prost::Message;
use runtime_v2::TaskManager;
use tonic::{Status, body::Body};

use crate::{
    api::introspection::{PluginInfoRequest, PluginInfoResponse, RuntimeRequest},
    containerd::{Containerd, Scope},
    convert,
    grpc::{NAMESPACE_HEADER, status, unary},
};

/// The plugin in whose place this daemon stands.
const PLUGIN: (&str, &str) = ("io.containerd.runtime.v2", "task");

/// What it is asked for; any other request is containerd's to answer.
const RUNTIME_REQUEST: &str = "containerd.types.RuntimeRequest";

/// Without a namespace a plugin may be asked for too, and the answer is the same in all.
const ANY_NAMESPACE: &str = "default";

/// Answers for plugins.
#[derive(Debug, Clone)]
pub(crate) struct Introspection {
    manager: TaskManager,
    containerd: Containerd,
}

impl Introspection {
    /// Answers for a manager's shims, and for the rest those of a containerd.
    pub(crate) fn new(manager: TaskManager, containerd: Containerd) -> Self {
        Self { manager, containerd }
    }

    /// Serves one call of `PluginInfo`.
    pub(crate) async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let named = request.headers().get(NAMESPACE_HEADER).and_then(|name| name.to_str().ok());
        let scope = Scope::of(named.unwrap_or(ANY_NAMESPACE));
        let this = self.clone();
        unary(request, |message| async move { this.plugin_info(&scope, message).await }).await
    }

    async fn plugin_info(
        &self,
        scope: &Scope,
        mut request: PluginInfoRequest,
    ) -> Result<PluginInfoResponse, Status> {
        let Some(asked) = runtime_request(&request)? else {
            return self.containerd.plugin_info(scope, request).await;
        };
        // The record of the plugin is containerd's, without its word about the runtime.
        request.options = None;
        let mut answer = self.containerd.plugin_info(scope, request).await?;
        let options = asked.options.map(convert::any_in);
        let info = self.manager.shims().info(&asked.runtime_path, options.as_ref()).await;
        let info = convert::runtime_info_out(&info.map_err(|error| status(&error))?);
        answer.extra = Some(info.map_err(|why| Status::internal(why.to_string()))?);
        Ok(answer)
    }
}

/// What is asked about a runtime, if that is what is asked.
fn runtime_request(request: &PluginInfoRequest) -> Result<Option<RuntimeRequest>, Status> {
    let is_ours = (request.r#type.as_str(), request.id.as_str()) == PLUGIN;
    let Some(options) = request.options.as_ref().filter(|_| is_ours) else { return Ok(None) };
    if options.type_url.rsplit('/').next() != Some(RUNTIME_REQUEST) {
        return Ok(None);
    }
    let decoded = RuntimeRequest::decode(options.value.as_slice());
    decoded.map(Some).map_err(|why| Status::invalid_argument(format!("{why}: invalid argument")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Any;

    #[test]
    fn only_what_is_asked_about_a_runtime_is_answered_here() {
        let asked = RuntimeRequest { runtime_path: "io.containerd.runc.v2".into(), options: None };
        let ask = |kind: &str, id: &str, type_url: &str| PluginInfoRequest {
            r#type: kind.into(),
            id: id.into(),
            options: Some(Any { type_url: type_url.into(), value: asked.encode_to_vec() }),
        };
        for type_url in [RUNTIME_REQUEST, "types.containerd.io/containerd.types.RuntimeRequest"] {
            let ours = runtime_request(&ask(PLUGIN.0, PLUGIN.1, type_url)).unwrap();
            assert_eq!(ours.as_ref(), Some(&asked), "{type_url}");
        }
        for other in [
            ask(PLUGIN.0, "other", RUNTIME_REQUEST),
            ask("io.containerd.snapshotter.v1", "overlayfs", RUNTIME_REQUEST),
            ask(PLUGIN.0, PLUGIN.1, "containerd.types.Other"),
            PluginInfoRequest { options: None, ..ask(PLUGIN.0, PLUGIN.1, RUNTIME_REQUEST) },
        ] {
            assert_eq!(runtime_request(&other).unwrap(), None, "{other:?}");
        }
        let mut torn = ask(PLUGIN.0, PLUGIN.1, RUNTIME_REQUEST);
        torn.options = Some(Any { type_url: RUNTIME_REQUEST.into(), value: vec![0xff] });
        assert_eq!(runtime_request(&torn).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
