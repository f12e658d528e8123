//! OCI specs: what containerd writes into `config.json`, as small as runc and crun accept.

use serde_json::{Map, Value, json};

/// A container's spec in the making. Its process is `argv`, with all capabilities that tests need and a namespace of its
/// own for pids, mounts, host name and IPC; the network is the host's, because making one is slow and tests nothing here.
#[derive(Debug, Clone)]
pub struct Spec {
    value: Value,
}

impl Spec {
    /// A spec that runs `argv`.
    #[must_use]
    pub fn new(argv: &[&str]) -> Self {
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let value = json!({
            "ociVersion": "1.0.2",
            "process": process(argv),
            "root": { "path": "rootfs", "readonly": false },
            "hostname": "container",
            "mounts": [
                mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
                mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
                mount("devpts", "/dev/pts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
                mount("tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777"]),
            ],
            "annotations": {},
            "linux": {
                "namespaces": namespaces,
                "resources": { "devices": [{ "allow": true, "access": "rwm" }] },
            },
        });
        Self { value }
    }

    /// A shell command line.
    #[must_use]
    pub fn shell(script: &str) -> Self {
        Self::new(&["sh", "-c", script])
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.value["annotations"][key] = json!(value);
        self
    }

    /// Runs the process on a terminal.
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.value["process"]["terminal"] = json!(true);
        self
    }

    /// Runs the process as another user.
    #[must_use]
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.value["process"]["user"] = json!({ "uid": uid, "gid": gid });
        self
    }

    /// Adds an environment variable, `NAME=value`.
    #[must_use]
    pub fn env(mut self, assignment: &str) -> Self {
        if let Some(list) = self.value["process"]["env"].as_array_mut() {
            list.push(json!(assignment));
        }
        self
    }

    /// Takes a namespace away: the container shares the host's.
    #[must_use]
    pub fn without_namespace(mut self, kind: &str) -> Self {
        self.retain_namespaces(kind);
        self
    }

    /// Joins a namespace by its path, or, with an empty one, writes the empty path out.
    #[must_use]
    pub fn namespace_path(mut self, kind: &str, path: &str) -> Self {
        self.retain_namespaces(kind);
        if let Some(list) = self.value["linux"]["namespaces"].as_array_mut() {
            list.push(json!({ "type": kind, "path": path }));
        }
        self
    }

    /// Limits the memory.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.value["linux"]["resources"]["memory"] = json!({ "limit": bytes, "swap": bytes });
        self
    }

    /// Mounts a directory of the host.
    #[must_use]
    pub fn bind(mut self, source: &str, target: &str) -> Self {
        if let Some(list) = self.value["mounts"].as_array_mut() {
            list.push(json!({
                "type": "bind", "source": source, "destination": target, "options": ["rbind", "rw"]
            }));
        }
        self
    }

    /// The cgroup's path in every hierarchy.
    #[must_use]
    pub fn cgroup(mut self, path: &str) -> Self {
        self.value["linux"]["cgroupsPath"] = json!(path);
        self
    }

    /// Sets anything else, by a JSON pointer's path to an existing parent.
    #[must_use]
    pub fn set(mut self, parent: &str, key: &str, value: Value) -> Self {
        if let Some(object) = self.value.pointer_mut(parent).and_then(Value::as_object_mut) {
            object.insert(key.to_owned(), value);
        }
        self
    }

    /// The bytes of `config.json`.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        self.value.to_string().into_bytes()
    }

    /// The spec's annotations.
    #[must_use]
    pub fn annotations(&self) -> Map<String, Value> {
        self.value["annotations"].as_object().cloned().unwrap_or_default()
    }

    fn retain_namespaces(&mut self, kind: &str) {
        if let Some(list) = self.value["linux"]["namespaces"].as_array_mut() {
            list.retain(|namespace| namespace["type"] != kind);
        }
    }
}

/// An OCI process: of a spec, or of an exec.
#[must_use]
pub fn process(argv: &[&str]) -> Value {
    let capabilities = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETUID", "CAP_SETGID"];
    json!({
        "terminal": false,
        "user": { "uid": 0, "gid": 0 },
        "args": argv,
        "env": ["PATH=/bin", "TERM=xterm"],
        "cwd": "/",
        "capabilities": {
            "bounding": capabilities, "effective": capabilities, "permitted": capabilities
        },
    })
}

fn mount(kind: &str, target: &str, options: &[&str]) -> Value {
    json!({ "type": kind, "source": kind, "destination": target, "options": options })
}
