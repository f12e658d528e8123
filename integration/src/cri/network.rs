//! The bridge that the pods of one node are on: private to the host, without a way out, and gone with the node.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::failure::Result;

/// A bridge, which the network plugin makes for the first pod.
#[derive(Debug)]
pub(super) struct Network {
    bridge: String,
}

impl Network {
    /// Writes the configuration into `dir`/cni. Name and addresses are made of the token, since others run beside us.
    pub(super) fn configure(dir: &Path, token: &str) -> Result<Self> {
        let digest = Sha256::digest(token);
        let (second, third) = (digest[0] % 64 + 64, digest[1]);
        // The kernel takes fifteen characters.
        let bridge = format!("cri{}", &token[token.len().saturating_sub(12)..]);
        let range = json!([[{ "subnet": format!("10.{second}.{third}.0/24") }]]);
        let text = json!({
            "cniVersion": "1.0.0",
            "name": token,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": bridge,
                    "isGateway": true,
                    "ipMasq": false,
                    "ipam": { "type": "host-local", "dataDir": dir.join("ipam"), "ranges": range },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        });
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("cni/10-bridge.conflist"), text.to_string())?;
        Ok(Self { bridge })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // There is none if no pod has been on it.
        let mut delete = Command::new("ip");
        delete.args(["link", "delete", &self.bridge]).stderr(Stdio::null());
        let _ = delete.status();
    }
}
