//! One method per sub-command of the OCI runtime.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use runtime_proto::{errdefs::Code, options::CheckpointOptions};

use super::{ProcessStreams, Runc, Streams};
use crate::{
    error::{Error, Result},
    io::ChildStdio,
};

/// How a container is made.
#[derive(Debug)]
pub struct CreateArgs<'a> {
    /// Its bundle.
    pub bundle: &'a Path,
    /// Where the runtime writes the pid.
    pub pid_file: &'a Path,
    /// `--no-pivot`.
    pub no_pivot: bool,
    /// `--no-new-keyring`.
    pub no_new_keyring: bool,
}

/// How a process is put into a container.
#[derive(Debug)]
pub struct ExecArgs<'a> {
    /// File with the OCI process as JSON.
    pub process: &'a Path,
    /// Where the runtime writes the pid.
    pub pid_file: &'a Path,
}

/// How a container is made from a checkpoint.
#[derive(Debug)]
pub struct RestoreArgs<'a> {
    /// As for a new container.
    pub create: CreateArgs<'a>,
    /// The checkpoint.
    pub image: &'a Path,
    /// Directory for criu's own files.
    pub work: &'a Path,
}

/// Arguments of any kind of string, in order.
fn args<const N: usize>(words: [&dyn AsRef<OsStr>; N]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

fn push_flag(args: &mut Vec<OsString>, set: bool, flag: &str) {
    if set {
        args.push(flag.into());
    }
}

fn push_console(args: &mut Vec<OsString>, stdio: &ChildStdio) {
    if let Some(socket) = &stdio.console_socket {
        args.extend(["--console-socket".into(), socket.clone().into_os_string()]);
    }
}

impl Runc {
    /// `create`: the container's init waits before its exec.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn create(
        &self,
        id: &str,
        create: &CreateArgs<'_>,
        streams: ProcessStreams<'_>,
    ) -> Result<()> {
        let mut args =
            args([&"create", &"--bundle", &create.bundle, &"--pid-file", &create.pid_file]);
        push_console(&mut args, &streams.child);
        push_flag(&mut args, create.no_pivot, "--no-pivot");
        push_flag(&mut args, create.no_new_keyring, "--no-new-keyring");
        args.push(id.into());
        self.call("OCI runtime create failed", &args, Streams::Process(streams)).await.map(drop)
    }

    /// `restore`, detached: the container runs where its checkpoint was taken.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn restore(
        &self,
        id: &str,
        restore: &RestoreArgs<'_>,
        streams: ProcessStreams<'_>,
    ) -> Result<()> {
        let create = &restore.create;
        let mut args = args([
            &"restore",
            &"--image-path",
            &restore.image,
            &"--work-path",
            &restore.work,
            &"--detach",
            &"--pid-file",
            &create.pid_file,
        ]);
        push_console(&mut args, &streams.child);
        push_flag(&mut args, create.no_pivot, "--no-pivot");
        args.extend(["-no-subreaper".into(), "--bundle".into(), create.bundle.into(), id.into()]);
        self.call("OCI runtime restore failed", &args, Streams::Process(streams)).await.map(drop)
    }

    /// `start`: lets a created init go on.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn start(&self, id: &str) -> Result<()> {
        self.plain("OCI runtime start failed", args([&"start", &id])).await
    }

    /// `exec`, detached.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn exec(
        &self,
        id: &str,
        exec: &ExecArgs<'_>,
        streams: ProcessStreams<'_>,
    ) -> Result<()> {
        let mut args = args([&"exec", &"--process", &exec.process]);
        push_console(&mut args, &streams.child);
        args.extend(["--detach".into(), "--pid-file".into(), exec.pid_file.into(), id.into()]);
        self.call("OCI runtime exec failed", &args, Streams::Process(streams)).await.map(drop)
    }

    /// `kill` of init, or of all processes of the container.
    ///
    /// # Errors
    /// What the runtime says; see [`super::error::of_kill`].
    pub async fn kill(&self, id: &str, signal: u32, all: bool) -> Result<()> {
        let mut args = args([&"kill"]);
        push_flag(&mut args, all, "--all");
        args.extend([id.into(), signal.to_string().into()]);
        self.plain("OCI runtime kill failed", args).await
    }

    /// `delete`; a container that the runtime does not know is deleted.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn delete(&self, id: &str, force: bool) -> Result<()> {
        let mut args = args([&"delete"]);
        push_flag(&mut args, force, "--force");
        args.push(id.into());
        match self.plain("failed to delete task", args).await {
            Err(error) if error.kind() == Code::NotFound => Ok(()),
            done => done,
        }
    }

    /// `pause`.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn pause(&self, id: &str) -> Result<()> {
        self.plain("OCI runtime pause failed", args([&"pause", &id])).await
    }

    /// `resume`.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn resume(&self, id: &str) -> Result<()> {
        self.plain("OCI runtime resume failed", args([&"resume", &id])).await
    }

    /// `ps`: the pids of all processes in the container.
    ///
    /// # Errors
    /// What the runtime says, or that it did not print a list.
    pub async fn ps(&self, id: &str) -> Result<Vec<u32>> {
        let args = args([&"ps", &"--format", &"json", &id]);
        let output = self.call("OCI runtime ps failed", &args, Streams::Captured).await?;
        pids(&output)
    }

    /// `update` to these OCI Linux resources, in JSON.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn update(&self, id: &str, resources: &[u8]) -> Result<()> {
        let args = args([&"update", &"--resources=-", &id]);
        self.call("OCI runtime update failed", &args, Streams::Input(resources)).await.map(drop)
    }

    /// `checkpoint` into `image`; `work` is criu's.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn checkpoint(
        &self,
        id: &str,
        options: &CheckpointOptions,
        paths: CheckpointPaths<'_>,
    ) -> Result<()> {
        let mut args = args([&"checkpoint"]);
        // Without a path the runtime has one of its own; an empty one is an error to some.
        if !paths.image.as_os_str().is_empty() {
            args.extend(["--image-path".into(), paths.image.into()]);
        }
        args.extend(["--work-path".into(), paths.work.into()]);
        if let Some(parent) = paths.parent {
            args.extend(["--parent-path".into(), parent.into()]);
        }
        push_flag(&mut args, options.open_tcp, "--tcp-established");
        push_flag(&mut args, options.external_unix_sockets, "--ext-unix-sk");
        push_flag(&mut args, options.terminal, "--shell-job");
        push_flag(&mut args, options.file_locks, "--file-locks");
        for namespace in &options.empty_namespaces {
            args.extend(["--empty-ns".into(), namespace.into()]);
        }
        push_flag(&mut args, !options.exit, "--leave-running");
        args.push(id.into());
        self.plain("OCI runtime checkpoint failed", args).await
    }

    async fn plain(&self, doing: &str, args: Vec<OsString>) -> Result<()> {
        self.call(doing, &args, Streams::Captured).await.map(drop)
    }
}

/// Where a checkpoint goes.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointPaths<'a> {
    /// The checkpoint.
    pub image: &'a Path,
    /// criu's own files.
    pub work: &'a Path,
    /// An earlier checkpoint that this one builds on.
    pub parent: Option<&'a Path>,
}

/// Reads the output of `ps --format json`: an array of pids, or null for none.
///
/// Runtimes print warnings on the same stream; the list is on the last line that is one.
pub(crate) fn pids(output: &[u8]) -> Result<Vec<u32>> {
    if let Ok(pids) = serde_json::from_slice::<Option<Vec<u32>>>(output) {
        return Ok(pids.unwrap_or_default());
    }
    let list = output
        .split(|byte| *byte == b'\n')
        .rev()
        .find_map(|line| serde_json::from_slice::<Option<Vec<u32>>>(line).ok());
    match list {
        Some(pids) => Ok(pids.unwrap_or_default()),
        None => {
            let shown: String = String::from_utf8_lossy(output).chars().take(100).collect();
            Err(Error::new(
                Code::Unknown,
                format!("OCI runtime ps printed no list of pids: {shown:?}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_pids_as_runtimes_print_them() {
        assert_eq!(pids(b"[1,22,333]").unwrap(), [1, 22, 333]);
        assert!(pids(b"null\n").unwrap().is_empty());
        assert_eq!(pids(b"[\n  1,\n  2\n]\n").unwrap(), [1, 2]);
        assert_eq!(pids(b"warning: odd\n[7]\n").unwrap(), [7]);
        assert!(pids(b"").is_err());
        assert!(pids(b"{}").unwrap_err().to_string().contains("{}"));
    }

    proptest! {
        #[test]
        fn no_output_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = pids(&bytes);
        }
    }
}
