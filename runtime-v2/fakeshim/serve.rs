//! The process that stays.

use std::{
    error::Error,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use runtime_proto::{
    errdefs::Code,
    sandbox::SERVICE as SANDBOX,
    task::{SERVICE_V2, SERVICE_V3},
    ttrpc::{Request, Status},
};
use runtime_v2::ttrpc::{Handler, serve as serve_listener};
use tokio::{net::UnixListener, sync::Notify};

use crate::{
    Args, grpc,
    sandbox::Sandbox,
    script::{Call, Script, Unknown, note},
    tasks::Tasks,
};

/// After the answer to Shutdown has been written.
const END_PAUSE: Duration = Duration::from_millis(20);

/// Between looks for the file that a call waits for.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

pub(crate) fn serve(args: Args) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let script = Script::read(&args.home);
        write_log(&script);
        let path = args.socket.strip_prefix("unix://").map(PathBuf::from);
        let listener = match &path {
            Some(path) => UnixListener::bind(path)?,
            None => UnixListener::bind(format!("\0{}", args.socket))?,
        };
        let end = Arc::new(Notify::new());
        let home = args.home.clone();
        let (tasks, sandbox) = (Tasks::new(args), Sandbox::default());
        let shim = Shim { tasks, sandbox, home, end: Arc::clone(&end) };
        let serving: Pin<Box<dyn Future<Output = io::Result<()>>>> = if script.grpc {
            Box::pin(grpc::serve(listener, Arc::new(shim)))
        } else {
            Box::pin(serve_listener(listener, Arc::new(shim)))
        };
        tokio::select! {
            ended = serving => ended?,
            () = end.notified() => {
                // Gone before the process is, as with real shims.
                if let Some(path) = &path {
                    let _ = std::fs::remove_file(path);
                }
                tokio::time::sleep(END_PAUSE).await;
            }
        }
        Ok(())
    })
}

fn write_log(script: &Script) {
    let log = std::fs::OpenOptions::new().write(true).custom_flags(libc_nonblock()).open("log");
    if let Ok(mut log) = log {
        let _ = log.write_all(b"fakeshim serves\n");
        let _ = log.write_all(&vec![b'x'; script.log_bytes]);
    }
}

fn libc_nonblock() -> i32 {
    nix::fcntl::OFlag::O_NONBLOCK.bits()
}

struct Shim {
    tasks: Tasks,
    sandbox: Sandbox,
    home: PathBuf,
    end: Arc<Notify>,
}

#[async_trait]
impl Handler for Shim {
    async fn call(&self, request: Request) -> Result<Vec<u8>, Status> {
        let script = Script::read(&self.home);
        let version = match request.service.as_str() {
            SERVICE_V2 => 2,
            SERVICE_V3 => 3,
            _ => 0,
        };
        let id = Tasks::id_of(&request);
        if request.service == SANDBOX && script.sandbox {
            note(&self.home, &format!("sandbox {} {id}", request.method));
            before(&script.call(&request.method, &id), &self.home).await?;
            let answer = self.sandbox.call(&request).await;
            self.end_if_idle(&script, request.method == "ShutdownSandbox" && answer.is_ok());
            return answer;
        }
        note(&self.home, &format!("v{version} {} {id}", request.method));
        if !script.serves.contains(&version) {
            return Err(refuse_service(script.unknown, &request.service));
        }
        let call = script.call(&request.method, &id);
        before(&call, &self.home).await?;
        let answer = self.tasks.call(&request, &script).await;
        if call.dies_after {
            std::process::abort();
        }
        if call.hangs_after {
            note(&self.home, &format!("held {} {id}", request.method));
            std::future::pending::<()>().await;
        }
        if let Some(code) = call.refuses_after {
            return Err(status(code, "told to refuse afterwards"));
        }
        self.end_if_idle(&script, request.method == "Shutdown" && answer.is_ok());
        answer
    }
}

impl Shim {
    /// Ends when it is asked to, and nobody needs it: no task, nor the sandbox that it is.
    fn end_if_idle(&self, script: &Script, asked: bool) {
        if asked && script.obeys_shutdown && self.tasks.is_empty() && !self.sandbox.is_here() {
            self.end.notify_one();
        }
    }
}

async fn before(call: &Call, home: &Path) -> Result<(), Status> {
    tokio::time::sleep(Duration::from_millis(call.delay_ms)).await;
    if let Some(name) = &call.until {
        while !home.join(name).exists() {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
    if call.dies {
        std::process::abort();
    }
    if call.hangs {
        std::future::pending::<()>().await;
    }
    match call.refuses {
        Some(code) => Err(status(code, "told to refuse")),
        None => Ok(()),
    }
}

fn refuse_service(how: Unknown, service: &str) -> Status {
    match how {
        Unknown::Unimplemented => Code::Unimplemented.status(&format!("service {service}")),
        Unknown::InvalidArgument => {
            let mut status = status(Code::InvalidArgument.number(), "");
            status.message = format!("{service} service does not exist");
            status
        }
    }
}

fn status(code: i32, text: &str) -> Status {
    Code::from_number(code).unwrap_or(Code::Unknown).status(text)
}
