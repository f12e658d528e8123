//! A container with a shim of its own: what most tests begin with.

use std::path::PathBuf;

use crate::bundle::Bundle;
use crate::failure::{Context, Result};
use crate::fixture::Fixture;
use crate::shim::{Launch, Shim, runc_options};
use crate::spec::{self, Spec};
use crate::stdio::Stdio;
use crate::task::Answer;

/// A running container and its shim.
#[derive(Debug)]
pub struct Container {
    /// Its bundle.
    pub bundle: Bundle,
    /// Its shim.
    pub shim: Shim,
    /// Its init.
    pub pid: u32,
}

impl Container {
    /// Starts a shim, creates and starts a container without streams.
    ///
    /// # Errors
    /// When any of it fails.
    pub async fn run(fixture: &Fixture, name: &str, spec: &Spec) -> Result<Self> {
        Self::run_with(fixture, name, spec, &Stdio::null(), None).await
    }

    /// The same with streams, and with an OCI runtime of one's own.
    ///
    /// # Errors
    /// When any of it fails.
    pub async fn run_with(
        fixture: &Fixture,
        name: &str,
        spec: &Spec,
        stdio: &Stdio,
        runtime: Option<&PathBuf>,
    ) -> Result<Self> {
        let container = Self::create(fixture, name, spec, stdio, runtime).await?;
        container.shim.tasks.start(container.id(), "").await.context("start")?;
        Ok(container)
    }

    /// The same, not started yet.
    ///
    /// # Errors
    /// When any of it fails.
    pub async fn create(
        fixture: &Fixture,
        name: &str,
        spec: &Spec,
        stdio: &Stdio,
        runtime: Option<&PathBuf>,
    ) -> Result<Self> {
        let bundle = fixture.bundle(name, spec)?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let options = runtime.map(|path| with_runtime(path)).transpose()?;
        let pid = shim.tasks.create_with(&bundle, stdio, options).await.context("create")?;
        Ok(Self { bundle, shim, pid })
    }

    /// The container's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.bundle.id
    }

    /// Adds and starts an exec without streams; gives its pid.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn exec(&self, name: &str, argv: &[&str]) -> Answer<u32> {
        self.exec_with(name, argv, &Stdio::null()).await
    }

    /// Adds and starts an exec.
    ///
    /// # Errors
    /// What the shim says.
    pub async fn exec_with(&self, name: &str, argv: &[&str], stdio: &Stdio) -> Answer<u32> {
        let mut process = spec::process(argv);
        process["terminal"] = stdio.terminal.into();
        self.shim.tasks.exec(self.id(), name, &process, stdio).await?;
        self.shim.tasks.start(self.id(), name).await
    }

    /// Ends the container and its shim, whatever state they are in, and waits until the shim is gone.
    ///
    /// # Errors
    /// When they do not end.
    pub async fn retire(&self) -> Result {
        self.shim.retire(self.id()).await.context("retiring")?;
        self.shim.gone().await
    }
}

/// Options that name an OCI runtime.
///
/// # Errors
/// Never for real.
pub fn with_runtime(
    path: &std::path::Path,
) -> Result<containerd_shim_protos::protobuf::well_known_types::any::Any> {
    let mut options = containerd_shim_protos::shim::oci::Options::new();
    options.binary_name = path.display().to_string();
    runc_options(&options)
}
