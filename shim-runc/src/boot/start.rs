//! `start`: binds the socket of the group and leaves a shim behind, or finds the one that is there.
//!
//! The new shim is a fork of this process, without exec: nothing has to be loaded, linked or
//! parsed again, and it shares the pages of this image with every other shim. It is forked before
//! any thread exists. It reports through a pair of sockets when it serves, or why it cannot, and is told when its address
//! is known: should this process be killed before, the shim ends.

use std::{
    env, fs,
    io::{self, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use runtime_proto::{
    bootstrap::{Bootstrap, ENV_SCHED_CORE, ENV_TTRPC_ADDRESS, Extension, LogLevel, StartInput},
    errdefs::Code,
    types::Any,
};

use super::{
    args::Args,
    aside::read_within,
    probe::{self, Speaks},
    serve::{self, Serve},
    socket::{self, Bound, DEFAULT_DIR, Group, MAX_PATH},
};
use crate::{
    cgroup,
    error::{Error, Result},
    files,
    runc::options::RuncOptions,
    spec::Spec,
    sys::process::{self, Fork},
};

/// How long to go on trying when the shim of the group is found and gone again, as it is when its
/// last container was deleted just now.
const JOIN_LIMIT: Duration = Duration::from_secs(2);

/// How long a forked shim may take until it serves, which takes it a millisecond.
const READY_LIMIT: Duration = Duration::from_secs(10);

/// Between attempts: about what a shim takes from its last answer to its end.
const JOIN_PAUSE: Duration = Duration::from_millis(2);

/// What `start` was asked, by flags, environment and stdin together.
struct Request {
    args: Args,
    /// containerd is 2.3 or later and reads a protobuf answer.
    modern: bool,
    debug: bool,
    events: String,
    socket_dir: PathBuf,
    options: RuncOptions,
    bundle: PathBuf,
}

/// Carries out `start`. Returns in the starter, and also, much later, in the shim.
pub(super) fn start(args: Args) -> Result<ExitCode> {
    // What containerd has inherited and passed on is not the shim's to keep open.
    process::close_inherited();
    let request = Request::read(args)?;
    let spec = Spec::read(&request.bundle)?;
    let group = spec.group().unwrap_or(&request.args.id);
    let args = &request.args;
    let path = socket::path(&request.socket_dir, &args.address, &args.namespace, group)?;
    let deadline = Instant::now() + JOIN_LIMIT;
    loop {
        match socket::bind_or_connect(&path)? {
            Group::New(bound) => return request.launch(bound),
            Group::Existing(stream) => match probe::ask(stream, &args.id) {
                Ok(speaks) => return request.join(speaks, &path),
                Err(error) if has_left(&error) && Instant::now() < deadline => {
                    thread::sleep(JOIN_PAUSE);
                }
                Err(error) => {
                    let doing = format!("ask the shim at {} what it speaks", path.display());
                    return Err(Error::io(doing, error));
                }
            },
        }
    }
}

/// Whether the shim went away while it was asked, rather than being silent or strange.
fn has_left(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::UnexpectedEof | Kind::ConnectionReset | Kind::BrokenPipe)
}

impl Request {
    fn read(args: Args) -> Result<Self> {
        let stdin = super::read_stdin()?;
        let input = StartInput::decode(&stdin, &args.namespace, &args.id)
            .map_err(|error| Error::caused(Code::InvalidArgument, "read stdin", error))?;
        let bundle = env::current_dir().map_err(|error| Error::io("find the bundle", error))?;
        let mut request = Self {
            debug: args.debug,
            args,
            modern: false,
            events: env::var(ENV_TTRPC_ADDRESS).unwrap_or_default(),
            socket_dir: DEFAULT_DIR.into(),
            options: RuncOptions::default(),
            bundle,
        };
        match input {
            StartInput::Nothing => {}
            StartInput::Options(any) => request.options = options(&any)?,
            StartInput::Params(mut params) => {
                request.modern = true;
                request.debug |= params.log_level.value() <= LogLevel::LOG_LEVEL_DEBUG as i32;
                if request.events.is_empty() {
                    request.events.clone_from(&params.containerd_ttrpc_address);
                }
                if let Some(dir) = params.socket_dir.take().filter(|dir| !dir.is_empty()) {
                    request.socket_dir = dir.into();
                }
                for any in
                    params.extensions.drain(..).filter_map(|mut it: Extension| it.value.take())
                {
                    request.options = options(&any)?;
                }
            }
        }
        check_events(&request.events)?;
        Ok(request)
    }

    /// Answers for the shim that serves the group already.
    fn join(&self, speaks: Speaks, socket: &Path) -> Result<ExitCode> {
        let address = address(socket);
        if speaks.v2 {
            self.write_address(&address)?;
        }
        let answer = if self.modern {
            encoded(Bootstrap::ttrpc(if speaks.v3 { 3 } else { 2 }, address))?
        } else if speaks.v2 {
            address.into_bytes()
        } else {
            // Only JSON can say 3, and only a containerd that reads it has made such a shim.
            Bootstrap::ttrpc(3, address).to_json().into_bytes()
        };
        super::print(&answer)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Forks the shim, and answers for it.
    fn launch(&self, bound: Bound) -> Result<ExitCode> {
        let Bound { listener, file } = bound;
        let prepared = self.prepare(file.path());
        let forked = prepared.and_then(|()| {
            let pair =
                UnixStream::pair().map_err(|error| Error::io("make a pair of sockets", error))?;
            let forked = process::fork().map_err(|error| Error::io("fork the shim", error))?;
            Ok((pair, forked))
        });
        let ((mut ours, shims), forked) = forked.inspect_err(|_| {
            file.remove();
            self.remove_address();
        })?;
        match forked {
            Fork::Child => {
                drop(ours);
                let serve = Serve {
                    namespace: self.args.namespace.clone(),
                    id: self.args.id.clone(),
                    debug: self.debug,
                    events: self.events.clone(),
                    listener,
                    file: Some(file),
                };
                Ok(serve::forked(serve, shims))
            }
            Fork::Parent(shim) => {
                drop((listener, shims));
                let done = self.attend(&mut ours, file.path());
                if done.is_err() {
                    // What is not a shim by now must not become one.
                    let _ = process::kill(shim, Signal::SIGKILL as i32);
                    process::wait_for(shim);
                    file.remove();
                    self.remove_address();
                }
                done.map(|()| ExitCode::SUCCESS)
            }
        }
    }

    /// What must be done before the fork. This process puts itself where the shim is to be, which
    /// then begins there: once it serves, others may have joined it, and nothing must fail any more.
    fn prepare(&self, socket: &Path) -> Result<()> {
        self.write_address(&address(socket))?;
        if env::var_os(ENV_SCHED_CORE).is_some_and(|value| !value.is_empty()) {
            process::share_core().map_err(|error| Error::io("enable core scheduling", error))?;
        }
        let pid = std::process::id();
        if !self.options.shim_cgroup.is_empty() {
            cgroup::add_pid(&self.options.shim_cgroup, pid)
                .map_err(|error| error.within("join the shim's cgroup"))?;
        }
        cgroup::adjust_oom_score(pid, nix::unistd::getppid().as_raw().cast_unsigned())
            .map_err(|error| error.within("adjust the shim's OOM score"))
    }

    /// What must be done after it: waits until the shim serves, answers, and tells it so.
    fn attend(&self, shim: &mut UnixStream, socket: &Path) -> Result<()> {
        let said = read_within(shim, READY_LIMIT)
            .map_err(|error| Error::io("wait for the shim to serve", error))?;
        if said != serve::READY {
            let why = if said.is_empty() { "it ended without a word" } else { said.as_str() };
            return Err(Error::new(Code::Unknown, format!("the shim does not serve: {why}")));
        }
        let address = address(socket);
        let answer =
            if self.modern { encoded(Bootstrap::ttrpc(3, address))? } else { address.into_bytes() };
        super::print(&answer)?;
        shim.write_all(serve::ANSWERED).map_err(|error| Error::io("tell the shim", error))
    }

    /// Leaves the address in the bundle, where containerd 1.6 and 1.7 look for it: a node may come to have one of these again
    /// while the container runs.
    fn write_address(&self, address: &str) -> Result<()> {
        let path = self.bundle.join("address");
        let temporary = self.bundle.join(".address");
        let written = files::write(&temporary, address.as_bytes(), 0o644);
        written.and_then(|()| fs::rename(&temporary, &path)).map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::io(format!("write {}", path.display()), error)
        })
    }

    fn remove_address(&self) {
        let _ = fs::remove_file(self.bundle.join("address"));
    }
}

fn address(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

fn encoded(answer: Bootstrap) -> Result<Vec<u8>> {
    answer.to_protobuf().map_err(|error| Error::caused(Code::Internal, "encode the answer", error))
}

/// The options at start, where they only name the shim's own cgroup. Those of a type that is not
/// ours are for somebody else to read, and what is wrong with generic ones is told at Create.
fn options(any: &Any) -> Result<RuncOptions> {
    use runtime_proto::options::{Error as OptionsError, Sent};
    match Sent::decode(Some(any)) {
        Err(OptionsError::Type(_)) => Ok(RuncOptions::default()),
        Ok(Sent::Generic(_)) => Ok(RuncOptions::sent(Some(any)).unwrap_or_default()),
        _ => RuncOptions::sent(Some(any)),
    }
}

/// Events are half of what a shim is for: better none than one that cannot tell of exits.
/// containerd need not be there now.
fn check_events(address: &str) -> Result<()> {
    let path = address.strip_prefix("unix://").unwrap_or(address);
    let why = if path.is_empty() {
        "is not set".to_owned()
    } else if path.contains("://") {
        format!("{address:?} is not the address of a unix socket")
    } else if path.len() > MAX_PATH {
        format!("{address:?} is longer than the {MAX_PATH} bytes of a socket's path")
    } else {
        return Ok(());
    };
    let message = format!("{ENV_TTRPC_ADDRESS} {why}: events could not be published");
    Err(Error::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_for_events() {
        for good in ["/run/c.sock.ttrpc", "unix:///run/c.sock.ttrpc"] {
            check_events(good).unwrap();
        }
        for bad in ["", "unix://", "tcp://1.2.3.4:5", &format!("/{}", "x".repeat(107))] {
            let error = check_events(bad).unwrap_err().to_string();
            assert!(error.contains("TTRPC_ADDRESS"), "{error}");
        }
    }
}
