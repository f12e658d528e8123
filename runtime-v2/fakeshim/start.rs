//! The actions that end: `start`, `delete`, `-info` and `-v`.

use std::{
    error::Error,
    fs::{self, File},
    io::{Read, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::fcntl::{Flock, FlockArg};
use protobuf::Message;
use runtime_proto::{
    any,
    bootstrap::{Bootstrap, Protocol, StartInput},
    task::DeleteResponse,
    types::{RuntimeInfo, Timestamp},
};

use crate::{
    Args,
    script::{Answer, Delete, Script, Start, note},
};

type Done = Result<(), Box<dyn Error>>;

/// For the launched process to listen; only a hang meets it.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(20);

/// For what hangs: longer than any test.
const HANG: Duration = Duration::from_secs(3600);

pub(crate) fn version(args: &Args) -> Done {
    say(Script::read(&args.home).printed_version.as_bytes())
}

pub(crate) fn info(args: &Args) -> Done {
    note(&args.home, "info");
    let mut info = RuntimeInfo::new();
    info.name = "fakeshim".into();
    let features = Script::read(&args.home).features;
    if !features.is_empty() {
        info.features = Some(any::raw(any::OCI_FEATURES, features.into())).into();
    }
    say(&info.write_to_bytes()?)
}

pub(crate) fn delete(args: &Args) -> Done {
    note(&args.home, &format!("delete {}", args.id));
    let script = Script::read(&args.home);
    match script.delete {
        Delete::Works => {}
        Delete::Fails => return Err("told to fail".into()),
        Delete::Hangs => thread::sleep(HANG),
    }
    let mut answer = DeleteResponse::new();
    answer.pid = script.delete_pid;
    answer.exit_status = 137;
    answer.exited_at = Some(Timestamp::now()).into();
    say(&answer.write_to_bytes()?)
}

pub(crate) fn start(args: &Args) -> Done {
    let script = Script::read(&args.home);
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input)?;
    let form = match StartInput::decode(&input, &args.namespace, &args.id) {
        Ok(StartInput::Nothing) => "nothing",
        Ok(StartInput::Options(_)) => "options",
        Ok(StartInput::Params(_)) => "params",
        Err(_) => "garbage",
    };
    note(&args.home, &format!("start {} {form}", args.id));
    match script.start {
        Start::FailsEarly => return Err("told to fail early".into()),
        Start::HangsEarly => thread::sleep(HANG),
        _ => {}
    }
    let name = script.group.clone().unwrap_or_else(|| format!("{}-{}", args.namespace, args.id));
    let path = args.home.join("s").join(name);
    fs::create_dir_all(args.home.join("s"))?;
    let address = if script.abstract_socket {
        path.display().to_string()
    } else {
        format!("unix://{}", path.display())
    };
    let lock = File::create(path.with_extension("lock"))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    if !reachable(&address) {
        let _ = fs::remove_file(&path);
        launch(args, &address)?;
    }
    drop(lock);
    match script.start {
        Start::FailsLate => return Err("told to fail late".into()),
        Start::Hangs => thread::sleep(HANG),
        Start::Warns => std::io::stderr().write_all(b"a warning\n")?,
        Start::Works | Start::FailsEarly | Start::HangsEarly => {}
    }
    let mut bootstrap = Bootstrap::ttrpc(script.version, address);
    if script.grpc {
        bootstrap.protocol = Protocol::Grpc;
        // As such shims write it.
        bootstrap.address = path.display().to_string();
    }
    match script.answer {
        Answer::Protobuf => say(&bootstrap.to_protobuf()?),
        Answer::Json => say(bootstrap.to_json().as_bytes()),
        Answer::Plain => say(bootstrap.to_plain().as_bytes()),
        Answer::Nothing => Ok(()),
        Answer::Garbage => say(&[0xff; 40]),
        Answer::DeadAddress => {
            say(Bootstrap::ttrpc(script.version, "unix:///nonexistent/s").to_json().as_bytes())
        }
    }
}

/// Launches the process that stays, and waits until it listens.
fn launch(args: &Args, address: &str) -> Done {
    let own = std::env::args_os().next().unwrap_or_default();
    let mut child = Command::new(own)
        .args(["-namespace", &args.namespace, "-id", &args.id])
        .args(["-address", &args.address, "-socket", address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let deadline = Instant::now() + LAUNCH_TIMEOUT;
    while !reachable(address) {
        if let Some(status) = child.try_wait()? {
            return Err(format!("the server ended: {status}").into());
        }
        if Instant::now() > deadline {
            return Err("the server does not listen".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    note(&args.home, &format!("launched {}", child.id()));
    Ok(())
}

fn reachable(address: &str) -> bool {
    match address.strip_prefix("unix://") {
        Some(path) => UnixStream::connect(path).is_ok(),
        None => {
            use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
            SocketAddr::from_abstract_name(address)
                .and_then(|name| UnixStream::connect_addr(&name))
                .is_ok()
        }
    }
}

fn say(bytes: &[u8]) -> Done {
    std::io::stdout().write_all(bytes)?;
    Ok(())
}
