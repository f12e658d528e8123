//! Pids, Stats, Update.

use std::collections::HashMap;

use runtime_proto::{any, errdefs::Code, options::ProcessDetails, task::ProcessInfo, types::Any};
use serde::de::IgnoredAny;

use super::{Container, lock};
use crate::{
    error::{Error, Result},
    process::state::Verb,
    threads,
};

impl Container {
    /// The processes of the container; execs are marked with their id.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn pids(&self) -> Result<Vec<ProcessInfo>> {
        let pids = self.runc.ps(&self.id).await?;
        let mut execs: Vec<(u32, String)> = lock(&self.execs)
            .values()
            .map(|exec| (exec.snapshot(), &exec.id))
            .filter(|(snapshot, _)| snapshot.pid != 0 && snapshot.exit.is_none())
            .map(|(snapshot, id)| (snapshot.pid, id.clone()))
            .collect();
        execs.sort_unstable();
        pids.into_iter()
            .map(|pid| {
                let mut info = ProcessInfo::new();
                info.pid = pid;
                if let Ok(index) = execs.binary_search_by_key(&pid, |(pid, _)| *pid) {
                    let mut details = ProcessDetails::new();
                    details.exec_id.clone_from(&execs[index].1);
                    let details = any::pack(&details).map_err(|error| {
                        Error::caused(Code::Internal, "encode process details", error)
                    })?;
                    info.info = Some(details).into();
                }
                Ok(info)
            })
            .collect()
    }

    /// What the container uses, as metrics of the host's cgroup version.
    ///
    /// # Errors
    /// NotFound when the container has no cgroup.
    pub async fn stats(&self) -> Result<Any> {
        let cgroup = lock(&self.cgroup).clone();
        let cgroup = cgroup.ok_or_else(|| Error::new(Code::NotFound, "cgroup does not exist"))?;
        threads::run(move || cgroup.stats()).await?
    }

    /// Changes the limits of the container to these OCI Linux resources, in JSON.
    ///
    /// # Errors
    /// InvalidArgument when they are none, FailedPrecondition when the container has ended, what
    /// the runtime says.
    pub async fn update(&self, resources: Option<&Any>) -> Result<()> {
        let json = resources.map(|any| any.value.as_slice()).unwrap_or_default();
        check(json)?;
        let _op = self.init.op.lock().await;
        self.init.snapshot().state.allows(Verb::Update)?;
        self.while_alive(self.runc.update(&self.id, json)).await
    }
}

/// Whether these bytes can be OCI Linux resources at all; what they say is the runtime's to judge.
pub(crate) fn check(json: &[u8]) -> Result<()> {
    let parsed: serde_json::Result<HashMap<String, IgnoredAny>> = serde_json::from_slice(json);
    parsed.map(drop).map_err(|error| {
        let message = format!("resources are no OCI Linux resources: {error}");
        Error::new(Code::InvalidArgument, message)
    })
}
