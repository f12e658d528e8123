//! A shim that is the sandbox of its pod, as containerd's `shim` sandboxer wants it. No real one at hand is that: ours and
//! Go's leave it to containerd to keep a pause container. So a stand-in is, which runs nothing and writes down what it is
//! asked. What is real are containerd, its sandboxer, CRI, the plugin and the task manager.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::failure::Result;
use crate::fixture::Fixture;
use crate::paths;

/// The handler of such pods.
pub const HANDLER: &str = "standin";

/// Its runtime.
pub const RUNTIME: &str = "io.containerd.standin.v2";

/// The name that containerd and the manager look for then.
pub(super) const BINARY: &str = "containerd-shim-standin-v2";

/// The stand-in in a fixture's directory of programs.
#[derive(Debug)]
pub struct StandIn {
    home: PathBuf,
}

impl StandIn {
    /// Puts it there, where a node that starts then finds it.
    ///
    /// # Errors
    /// When it is not built.
    pub fn install(fixture: &Fixture) -> Result<Self> {
        fixture.offer(BINARY, &paths::stand_in("fakeshim")?)?;
        let home = fixture.bin();
        fs::write(home.join("fakeshim.json"), json!({ "sandbox": true }).to_string())?;
        Ok(Self { home })
    }

    /// What it was asked, in order: actions (`start ID ...`), calls of the task service (`v3 Create ID`) and of the sandbox
    /// service (`sandbox CreateSandbox ID`).
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.home.join("calls.log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// How often it was asked this.
    #[must_use]
    pub fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| line.starts_with(call)).count()
    }

    /// The processes that were started to stay.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let pid = |line: &String| line.strip_prefix("launched ")?.parse().ok();
        self.calls().iter().filter_map(pid).collect()
    }

    /// The sockets that are there.
    #[must_use]
    pub fn sockets(&self) -> Vec<PathBuf> {
        let all = paths::entries(&self.home.join("s"));
        all.filter(|path| path.extension().is_none_or(|kind| kind != "lock")).collect()
    }
}
