//! Looking: Get, List, ListPids and Metrics.

use runtime_v2::{ProcessId, Task};
use tonic::{Code, Status};

use super::{
    Tasks,
    call::{Call, is_gone, process},
    filter,
};
use crate::{
    api::{
        self, Metric, Process,
        tasks::{
            GetResponse, ListPidsResponse, ListTasksRequest, ListTasksResponse, MetricsRequest,
            MetricsResponse, ProcessRequest, TaskRequest,
        },
    },
    convert,
    grpc::status,
};

impl Tasks {
    pub(super) async fn get(
        &self,
        call: &Call,
        request: ProcessRequest,
    ) -> Result<GetResponse, Status> {
        let task = self.task(call, &request.container_id).await?;
        let process = describe(&task, &process(&request.exec_id)?).await?;
        Ok(GetResponse { process: Some(process) })
    }

    /// All tasks of the caller's namespace. Their shims are asked at the same time, so that one
    /// that hangs costs the list its own limit and no more.
    pub(super) async fn list(
        &self,
        call: &Call,
        _: ListTasksRequest,
    ) -> Result<ListTasksResponse, Status> {
        let asked: Vec<_> = self
            .manager
            .list(Some(&call.namespace))
            .into_iter()
            .map(|task| tokio::spawn(async move { describe(&task, &ProcessId::Init).await }))
            .collect();
        let mut tasks = Vec::with_capacity(asked.len());
        for asked in asked {
            // One that has just gone is not listed.
            if let Ok(Ok(process)) = asked.await {
                tasks.push(process);
            }
        }
        Ok(ListTasksResponse { tasks })
    }

    pub(super) async fn list_pids(
        &self,
        call: &Call,
        request: TaskRequest,
    ) -> Result<ListPidsResponse, Status> {
        let task = self.task(call, &request.container_id).await?;
        let pids = task.pids().await.map_err(|error| status(&error))?;
        Ok(ListPidsResponse { processes: pids.into_iter().map(convert::pid_out).collect() })
    }

    pub(super) async fn stats(
        &self,
        call: &Call,
        request: MetricsRequest,
    ) -> Result<MetricsResponse, Status> {
        let wanted = filter::any_of(&request.filters).map_err(|error| {
            Status::invalid_argument(format!("filters: {error}: invalid argument"))
        })?;
        let namespace = call.namespace.as_str();
        let asked: Vec<_> = self
            .manager
            .list(Some(&call.namespace))
            .into_iter()
            .filter(|task| {
                wanted.matches(&|field| match field {
                    "id" => Some(task.key().id.as_str()),
                    "namespace" => Some(namespace),
                    _ => None,
                })
            })
            .map(|task| tokio::spawn(sample(task)))
            .collect();
        let mut metrics = Vec::with_capacity(asked.len());
        for asked in asked {
            metrics.extend(asked.await.ok().flatten());
        }
        Ok(MetricsResponse { metrics })
    }
}

/// What a shim says about a process. One that cannot say is told as unknown, unless it is gone.
async fn describe(task: &Task, process: &ProcessId) -> Result<Process, Status> {
    let id = match process {
        ProcessId::Init => task.key().id.to_string(),
        ProcessId::Exec(id) => id.to_string(),
    };
    match task.state(process).await {
        Ok(state) => Ok(convert::process_out(id, state)),
        Err(error) => {
            let status = status(&error);
            if is_gone(status.code()) {
                return Err(status);
            }
            tracing::warn!(%id, %error, "the state of a process is unknown");
            Ok(Process { id, status: api::Status::Unknown.into(), ..Process::default() })
        }
    }
}

/// Metrics of a task, if it has any.
async fn sample(task: Task) -> Option<Metric> {
    let timestamp = Some(convert::now());
    match task.stats().await {
        Ok(data) => {
            let id = task.key().id.to_string();
            Some(Metric { timestamp, id, data: Some(convert::any_out(data)) })
        }
        Err(error) => {
            if status(&error).code() != Code::NotFound {
                tracing::warn!(id = %task.key().id, %error, "a container's metrics are not known");
            }
            None
        }
    }
}
