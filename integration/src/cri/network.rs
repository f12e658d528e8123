//! The network of one node: a namespace of its own, with the bridge that its pods are on and without a way out. Whatever
//! network plugins leave behind (they leave rules of the firewall) goes with it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use tokio::process::Command as Client;

use crate::failure::{Context, Failure, Result};

/// A network namespace.
#[derive(Debug)]
pub(super) struct Network {
    name: String,
}

impl Network {
    /// Makes it, and writes the network plugins' configuration into `dir`/cni.
    pub(super) fn make(dir: &Path, token: &str) -> Result<Self> {
        let range = json!([[{ "subnet": "10.88.0.0/24" }]]);
        let text = json!({
            "cniVersion": "1.0.0",
            "name": token,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": true,
                    "ipMasq": false,
                    "ipam": { "type": "host-local", "dataDir": dir.join("ipam"), "ranges": range },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        });
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("cni/10-bridge.conflist"), text.to_string())?;
        ip(&["netns", "add", token])?;
        let network = Self { name: token.to_owned() };
        ip(&["-n", token, "link", "set", "lo", "up"])?;
        Ok(network)
    }

    /// A command that runs in it. `nsenter` becomes the program, with the same pid.
    pub(super) fn command(&self, program: &Path) -> Client {
        let mut command = Client::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A failure shows as a mount that is left behind.
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result {
    let call = arguments.join(" ");
    let run = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = run.context(format!("ip {call}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(format!("ip {call}: {said}")))
}
