//! `start`: binds the socket of the group and leaves a shim behind, or finds the one that is there.
//!
//! The new shim is a fork of this process, without exec: nothing has to be loaded, linked or
//! parsed again, and it shares the pages of this image with every other shim. It is forked before
//! any thread exists, when all is done that may fail, and serves at this process's word (`handshake`).

use std::{
    env, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use runtime_proto::{
    bootstrap::{Bootstrap, ENV_SCHED_CORE, ENV_TTRPC_ADDRESS, Extension, LogLevel, StartInput},
    errdefs::Code,
    types::Any,
};

use super::{
    End, address,
    args::Args,
    handshake,
    probe::{self, Speaks},
    serve::{Purpose, Shim},
    socket::{self, Bound, DEFAULT_DIR, Group, MAX_PATH},
};
use crate::{
    cgroup,
    error::{Error, Result},
    runc::options::RuncOptions,
    spec::Spec,
    sys::process::{self, Fork},
};

/// How long to go on trying when the shim of the group is found and gone again, as it is when its
/// last container was deleted just now.
const JOIN_LIMIT: Duration = Duration::from_secs(2);

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
pub(super) fn start(args: Args) -> Result<End> {
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
    fn join(&self, speaks: Speaks, socket: &Path) -> Result<End> {
        let address = address(socket);
        if speaks.v2 {
            address::write(&self.bundle, &address)?;
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
        Ok(End::Success)
    }

    /// Makes the shim, and answers for it. Whatever may fail is done before the fork.
    fn launch(&self, bound: Bound) -> Result<End> {
        let Bound { listener, file } = bound;
        let made = self.prepare(file.path()).and_then(|()| {
            let shim = Shim::new(self.purpose(), listener, Some(file.clone()))?;
            let ends = handshake::pair().map_err(|error| Error::io("make a pipe", error))?;
            let forked = process::fork().map_err(|error| Error::io("fork the shim", error))?;
            Ok((shim, ends, forked))
        });
        let (shim, (to_shim, to_starter), forked) = made.inspect_err(|_| {
            file.remove();
            address::remove(&self.bundle);
        })?;
        match forked {
            Fork::Child => {
                drop(to_shim);
                Ok(shim.run_forked(to_starter))
            }
            Fork::Parent(_) => {
                // Without the word the shim cleans up and ends.
                self.answer(file.path())?;
                to_shim.serve().map_err(|error| Error::io("let the shim serve", error))?;
                // The runtime that is open here, too, is the shim's: this process must not take it apart.
                process::end()
            }
        }
    }

    fn purpose(&self) -> Purpose {
        Purpose {
            namespace: self.args.namespace.clone(),
            id: self.args.id.clone(),
            debug: self.debug,
            events: self.events.clone(),
        }
    }

    /// Puts this process where the shim is to be, which then begins there, and leaves the address.
    fn prepare(&self, socket: &Path) -> Result<()> {
        address::write(&self.bundle, &address(socket))?;
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

    fn answer(&self, socket: &Path) -> Result<()> {
        let address = address(socket);
        let answer =
            if self.modern { encoded(Bootstrap::ttrpc(3, address))? } else { address.into_bytes() };
        super::print(&answer)
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
