//! What is done to one task or process: each is one call of the manager.

use runtime_v2::{ExecId, ExecOptions, ProcessId, Stdio};
use tonic::{Code, Status};

use super::{
    Tasks,
    call::{Call, process},
};
use crate::{
    api::tasks::{
        CloseIoRequest, DeleteResponse, ExecProcessRequest, KillRequest, ProcessRequest,
        ResizePtyRequest, StartResponse, TaskRequest, UpdateTaskRequest, WaitResponse,
    },
    convert,
    grpc::status,
};

impl Tasks {
    pub(super) async fn start(
        &self,
        call: &Call,
        request: ProcessRequest,
    ) -> Result<StartResponse, Status> {
        let (task, process) = self.process(call, &request.container_id, &request.exec_id).await?;
        let pid = task.start(&process).await.map_err(|error| status(&error))?;
        if process == ProcessId::Init {
            self.restores().remove(task.key());
        }
        Ok(StartResponse { pid })
    }

    pub(super) async fn delete(
        &self,
        call: &Call,
        request: TaskRequest,
    ) -> Result<DeleteResponse, Status> {
        let task = self.task(call, &request.container_id).await?;
        let deleted = self.manager.delete(task.key()).await.map_err(|error| status(&error));
        // One that its shim no longer knew is as gone as one that was deleted now.
        if deleted.as_ref().err().is_none_or(|status| status.code() == Code::NotFound) {
            self.restores().remove(task.key());
        }
        let exit = deleted?;
        Ok(convert::delete_out(request.container_id, &exit))
    }

    pub(super) async fn delete_process(
        &self,
        call: &Call,
        request: ProcessRequest,
    ) -> Result<DeleteResponse, Status> {
        let task = self.task(call, &request.container_id).await?;
        let id = ExecId::new(request.exec_id.as_str()).map_err(|error| status(&error))?;
        let exit = task.delete_exec(&id).await.map_err(|error| status(&error))?;
        Ok(convert::delete_out(request.exec_id, &exit))
    }

    pub(super) async fn kill(&self, call: &Call, request: KillRequest) -> Result<(), Status> {
        let (task, process) = self.process(call, &request.container_id, &request.exec_id).await?;
        let killed = task.kill(&process, request.signal, request.all).await;
        killed.map_err(|error| status(&error))
    }

    pub(super) async fn exec(
        &self,
        call: &Call,
        request: ExecProcessRequest,
    ) -> Result<(), Status> {
        if request.exec_id.is_empty() {
            return Err(Status::invalid_argument("exec id cannot be empty: invalid argument"));
        }
        let task = self.task(call, &request.container_id).await?;
        let id = ExecId::new(request.exec_id).map_err(|error| status(&error))?;
        let stdio = Stdio {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        };
        let options = ExecOptions { stdio, spec: request.spec.map(convert::any_in) };
        task.exec(&id, options).await.map_err(|error| status(&error))
    }

    pub(super) async fn resize_pty(
        &self,
        call: &Call,
        request: ResizePtyRequest,
    ) -> Result<(), Status> {
        let (task, process) = self.process(call, &request.container_id, &request.exec_id).await?;
        let resized = task.resize_pty(&process, request.width, request.height).await;
        resized.map_err(|error| status(&error))
    }

    pub(super) async fn close_io(
        &self,
        call: &Call,
        request: CloseIoRequest,
    ) -> Result<(), Status> {
        let (task, process) = self.process(call, &request.container_id, &request.exec_id).await?;
        if request.stdin {
            task.close_io(&process).await.map_err(|error| status(&error))?;
        }
        Ok(())
    }

    pub(super) async fn pause(&self, call: &Call, request: TaskRequest) -> Result<(), Status> {
        let task = self.task(call, &request.container_id).await?;
        task.pause().await.map_err(|error| status(&error))
    }

    pub(super) async fn resume(&self, call: &Call, request: TaskRequest) -> Result<(), Status> {
        let task = self.task(call, &request.container_id).await?;
        task.resume().await.map_err(|error| status(&error))
    }

    pub(super) async fn update(
        &self,
        call: &Call,
        request: UpdateTaskRequest,
    ) -> Result<(), Status> {
        let task = self.task(call, &request.container_id).await?;
        let resources = request.resources.map(convert::any_in);
        task.update(resources, request.annotations).await.map_err(|error| status(&error))
    }

    pub(super) async fn wait(
        &self,
        call: &Call,
        request: ProcessRequest,
    ) -> Result<WaitResponse, Status> {
        let task = self.task(call, &request.container_id).await?;
        let process: ProcessId = process(&request.exec_id)?;
        let exit = task.wait(&process).await.map_err(|error| status(&error))?;
        Ok(convert::wait_out(&exit))
    }
}
