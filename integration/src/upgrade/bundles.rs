//! What lies on the disk of a node, and the shims that are found by it.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::node::Node;
use crate::containerd::TASK_PLUGIN;
use crate::deadline::{self, HANG};
use crate::failure::{Context, Failure, Result};
use crate::shim::is_alive;
use crate::task::{TaskClient, V2, V3};

impl Node<'_> {
    /// The bundle of a container.
    #[must_use]
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.bundles().join(id)
    }

    /// Where all of them are.
    pub(super) fn bundles(&self) -> PathBuf {
        self.dir.join("state").join(TASK_PLUGIN).join(self.fixture.namespace())
    }

    /// The task API version in a bundle's `bootstrap.json`; none where there is no such file.
    ///
    /// # Errors
    /// When the file cannot be understood.
    pub fn version_on_disk(&self, id: &str) -> Result<Option<i64>> {
        let Ok(text) = fs::read(self.bundle(id).join("bootstrap.json")) else { return Ok(None) };
        let value: Value = serde_json::from_slice(&text).context("reading bootstrap.json")?;
        Ok(value["version"].as_i64())
    }

    /// What is written down is what the next manager begins with, and containerd too: it has to be what the shim speaks.
    ///
    /// # Errors
    /// When nothing is there, or something else.
    pub(super) async fn disk_is_true(&self, id: &str) -> Result {
        let version = self.version_on_disk(id)?;
        let service = match version {
            Some(2) => V2,
            Some(3) => V3,
            _ => return Err(Failure::new(format!("bootstrap.json of {id} says {version:?}"))),
        };
        let speaking = self.shim_client(id).await?.speaking(service);
        let answer = speaking.connect_task(id).await;
        answer.map(drop).context(format!("version in bootstrap.json of {id}: {version:?}"))
    }

    /// Writes another version there, as a release leaves it that has downgraded in memory alone.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn forge_version_on_disk(&self, id: &str, version: i64) -> Result {
        let file = self.bundle(id).join("bootstrap.json");
        let mut value: Value = serde_json::from_slice(&fs::read(&file)?)?;
        value["version"] = version.into();
        Ok(fs::write(&file, value.to_string())?)
    }

    /// The process of the shim at the address in a container's bundle.
    ///
    /// # Errors
    /// When nobody answers there.
    pub async fn shim_of(&self, id: &str) -> Result<u32> {
        let tasks = self.shim_client(id).await?;
        Ok(tasks.connect_task(id).await?.shim_pid)
    }

    /// A connection to a container's shim, past any manager, speaking what it understands.
    ///
    /// # Errors
    /// When nobody answers there.
    pub async fn shim_client(&self, id: &str) -> Result<TaskClient> {
        let mut address = self.address_of(id)?;
        if !address.contains("://") {
            // Old shims give the bare name of an abstract socket.
            address = format!("unix://@{address}");
        }
        let namespace = self.fixture.namespace();
        let client = TaskClient::connect(&address, V2, namespace)
            .await
            .context(format!("shim of {id} at {address}"))?;
        for service in [V2, V3] {
            let speaking = client.speaking(service);
            if speaking.connect_task(id).await.is_ok() {
                return Ok(speaking);
            }
        }
        Err(Failure::new(format!("the shim of {id} speaks neither v2 nor v3")))
    }

    fn address_of(&self, id: &str) -> Result<String> {
        let bundle = self.bundle(id);
        let noted = fs::read(bundle.join("bootstrap.json")).ok();
        let value = noted.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        if let Some(address) = value.as_ref().and_then(|value| value["address"].as_str()) {
            return Ok(address.to_owned());
        }
        let plain = fs::read_to_string(bundle.join("address"));
        plain.context(format!("address of {id}")).map(|text| text.trim().to_owned())
    }

    /// Waits for the end of a process that was a shim's.
    ///
    /// # Errors
    /// When it stays.
    pub async fn gone(&self, shim: u32) -> Result {
        deadline::until(&format!("the end of shim {shim}"), HANG, || !is_alive(shim)).await
    }
}
