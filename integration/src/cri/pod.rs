//! Pods and containers, as crictl is told of them: by files of JSON and by ids.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::node::{IMAGE, NAMESPACE, Node};
use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};

/// A pod that has been run.
#[derive(Debug, Clone)]
pub struct Pod {
    /// What CRI calls it.
    pub id: String,
    config: PathBuf,
    logs: PathBuf,
}

impl Pod {
    /// Runs a pod with the runtime of a handler: `rust` or `go`.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn run(node: &Node<'_>, name: &str, handler: &str) -> Result<Self> {
        let (config, logs) = Self::describe(node, name)?;
        let id = node.must(&["runp", "--runtime", handler, &config.display().to_string()]).await?;
        node.fixture().expect_socket_in(&node.address(), NAMESPACE, &id);
        Ok(Self { id, config, logs })
    }

    /// Writes down what a pod is to be, for `runp`; gives the file, and the directory of logs.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn describe(node: &Node<'_>, name: &str) -> Result<(PathBuf, PathBuf)> {
        let logs = node.dir().join("logs").join(name);
        let config = node.dir().join(format!("pod-{name}.json"));
        fs::create_dir_all(&logs)?;
        let token = node.fixture().namespace();
        let text = json!({
            "metadata": { "name": name, "uid": format!("{token}-{name}"), "namespace": "default", "attempt": 1 },
            "hostname": name,
            "log_directory": logs,
            "linux": { "cgroup_parent": format!("/{token}"), "security_context": own_processes() },
        });
        fs::write(&config, text.to_string())?;
        Ok((config, logs))
    }

    /// Creates a container in it.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn create(&self, node: &Node<'_>, name: &str, command: &[&str]) -> Result<Container> {
        let log = format!("{name}.log");
        let config = self.config.with_extension(format!("{name}.json"));
        let text = json!({
            "metadata": { "name": name, "attempt": 1 },
            "image": { "image": IMAGE },
            "command": command,
            "log_path": log,
            "linux": { "security_context": own_processes() },
        });
        fs::write(&config, text.to_string())?;
        let files = [config.display().to_string(), self.config.display().to_string()];
        let id = node.must(&["create", &self.id, &files[0], &files[1]]).await?;
        node.fixture().expect_socket_in(&node.address(), NAMESPACE, &id);
        Ok(Container { id, log: self.logs.join(log) })
    }

    /// Creates and starts a container in it.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn start(&self, node: &Node<'_>, name: &str, command: &[&str]) -> Result<Container> {
        let container = self.create(node, name, command).await?;
        node.must(&["start", &container.id]).await?;
        Ok(container)
    }

    /// The pid of its first process.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn pid(&self, node: &Node<'_>) -> Result<u32> {
        number(&inspected(node, "inspectp", &self.id).await?, "/info/pid")
    }

    /// Its address on the node's bridge.
    ///
    /// # Errors
    /// When it has none.
    pub async fn address(&self, node: &Node<'_>) -> Result<String> {
        text(&inspected(node, "inspectp", &self.id).await?, "/status/network/ip")
    }

    /// Its state, `SANDBOX_READY` or `SANDBOX_NOTREADY`.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn state(&self, node: &Node<'_>) -> Result<String> {
        text(&inspected(node, "inspectp", &self.id).await?, "/status/state")
    }

    /// Stops and removes it, its containers with it.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn remove(&self, node: &Node<'_>) -> Result {
        node.must(&["stopp", &self.id]).await?;
        node.must(&["rmp", &self.id]).await.map(drop)
    }
}

/// A container that has been created.
#[derive(Debug, Clone)]
pub struct Container {
    /// What CRI calls it.
    pub id: String,
    /// Where CRI writes what it prints.
    pub log: PathBuf,
}

impl Container {
    /// Runs a command in it; gives what that prints.
    ///
    /// # Errors
    /// When crictl or the command fails.
    pub async fn exec(&self, node: &Node<'_>, command: &[&str]) -> Result<String> {
        node.must(&[&["exec", "--sync", &self.id][..], command].concat()).await
    }

    /// The pid of its first process.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn pid(&self, node: &Node<'_>) -> Result<u32> {
        number(&inspected(node, "inspect", &self.id).await?, "/info/pid")
    }

    /// Its state, `CONTAINER_RUNNING` for example.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn state(&self, node: &Node<'_>) -> Result<String> {
        text(&inspected(node, "inspect", &self.id).await?, "/status/state")
    }

    /// The code that it ended with.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn exit_code(&self, node: &Node<'_>) -> Result<u32> {
        number(&inspected(node, "inspect", &self.id).await?, "/status/exitCode")
    }

    /// Waits until it is in a state.
    ///
    /// # Errors
    /// When it does not come to be.
    pub async fn until(&self, node: &Node<'_>, state: &str) -> Result {
        let looks = async {
            while self.state(node).await? != state {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        let limited = tokio::time::timeout(HANG, looks).await;
        limited.map_err(|_| Failure::new(format!("{} does not become {state}", self.id)))?
    }

    /// Its metrics.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn stats(&self, node: &Node<'_>) -> Result<Value> {
        let all = node.must(&["stats", "--all", "--id", &self.id, "-o", "json"]).await?;
        let all: Value = serde_json::from_str(&all).context("crictl stats")?;
        let one = all.pointer("/stats/0").cloned();
        one.ok_or_else(|| Failure::new(format!("no stats of {}: {all}", self.id)))
    }

    /// Stops and removes it.
    ///
    /// # Errors
    /// When crictl fails.
    pub async fn remove(&self, node: &Node<'_>) -> Result {
        node.must(&["stop", "--timeout", "0", &self.id]).await?;
        node.must(&["rm", &self.id]).await.map(drop)
    }
}

/// What a kubelet asks for unless it is told otherwise: each container has its processes to itself.
fn own_processes() -> Value {
    json!({ "namespace_options": { "pid": 1 } })
}

async fn inspected(node: &Node<'_>, command: &str, id: &str) -> Result<Value> {
    let output = node.must(&[command, "-o", "json", id]).await?;
    serde_json::from_str(&output).context(format!("crictl {command}"))
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    let text = value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| Failure::new(format!("no {pointer} in {value}")))
}

fn number(value: &Value, pointer: &str) -> Result<u32> {
    let number = value.pointer(pointer).and_then(Value::as_u64);
    let number = number.and_then(|number| number.try_into().ok());
    number.ok_or_else(|| Failure::new(format!("no {pointer} in {value}")))
}
