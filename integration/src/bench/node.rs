//! What the cases of the task manager stand on: a stock containerd, and the manager's two programs beside it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use super::contender::Runtime;
use super::ground::Memory;
use super::records;
use crate::attach::{Glue, Surroundings};
use crate::containerd::Containerd;
use crate::failure::{Failure, Result};
use crate::fixture::Fixture;
use crate::grpc::Grpc;
use crate::paths;
use crate::service::{Program, Service};

/// The series that the manager is compared with: the newest that is at hand as a package.
const SERIES: &str = "2";

/// What the manager is called in reports.
pub(super) const MANAGER: &str = "this manager";
/// What its form as a daemon in front of containerd is called.
pub(super) const DAEMON: &str = "this daemon";
/// How the name of containerd with its own manager begins.
pub(super) const STOCK: &str = "containerd ";

/// Between two looks at a program that comes up: so short that it does not matter, long enough to let it work.
const LOOK: Duration = Duration::from_millis(1);

/// Is the containerd there that the manager is compared with?
pub(super) fn is_there() -> bool {
    paths::containerd(SERIES).is_some()
}

/// A stock containerd with all its directories in memory: what its disk takes is nobody's merit.
#[derive(Debug)]
pub(super) struct Node<'a> {
    /// The ground.
    pub(super) fixture: &'a Fixture,
    /// The daemon.
    pub(super) containerd: Containerd<'a>,
    /// What it is called in reports.
    pub(super) stock: String,
    memory: Memory,
}

impl<'a> Node<'a> {
    /// Starts containerd, for which this shim is the shim of runc.
    pub(super) async fn start(fixture: &'a Fixture) -> Result<Self> {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let memory = Memory::at(&fixture.file(&format!("c{SERIES}")))?;
        let containerd = Containerd::start(fixture, SERIES).await?;
        let version = containerd.version().await?;
        let short = version.trim_start_matches('v').split(['~', '+', '-']).next();
        let stock = format!("{STOCK}{}", short.unwrap_or_default());
        Ok(Self { fixture, containerd, stock, memory })
    }

    /// Ends containerd, if it runs.
    pub(super) async fn end(self) -> Result {
        if self.containerd.pid().is_some() {
            self.containerd.stop().await?;
        }
        self.memory.end();
        Ok(())
    }

    /// Starts containerd again after its end; gives how long it took until it served.
    pub(super) async fn start_again(&mut self) -> Result<Duration> {
        let address = self.containerd.address();
        let begin = Instant::now();
        self.containerd.start_again_until(LOOK, async || is_served(&address).await).await?;
        Ok(begin.elapsed())
    }

    /// A client of containerd.
    pub(super) async fn client(&self) -> Result<Grpc> {
        Grpc::connect_roomy(&self.containerd.address()).await
    }

    /// What the manager is told so that it stands in the place of this containerd's own.
    pub(super) fn surroundings(&self, ids: &[String]) -> Surroundings {
        let mut surroundings = Surroundings::at(self.containerd.dir(), &self.containerd.address());
        let namespace = self.fixture.namespace();
        surroundings.request.containers =
            ids.iter().map(|id| records::known(namespace, id)).collect();
        surroundings
    }

    /// What the manager is told so that it stands beside it, with directories of its own, in memory as all others.
    pub(super) fn own_surroundings(&self) -> Surroundings {
        let (dir, address) = (self.fixture.dir(), self.containerd.address());
        let mut surroundings = Surroundings::at(dir, &address);
        surroundings.request.root = dir.join("state/root").display().to_string();
        surroundings
    }
}

async fn is_served(address: &Path) -> bool {
    // Any answer will do.
    let Ok(grpc) = Grpc::connect(address).await else { return false };
    grpc.unary("/containerd.services.version.v1.Version/Version", "", &[]).await.is_ok()
}

/// The manager as a containerd build has it.
#[derive(Debug)]
pub(super) struct Manager {
    service: Service,
    /// A connection to it.
    pub(super) glue: Glue,
    /// From being started to having found every shim.
    pub(super) ready_in: Duration,
}

impl Manager {
    /// Starts it and tells it its surroundings; it has to find as many tasks as these have containers.
    pub(super) async fn start(fixture: &Fixture, surroundings: &Surroundings) -> Result<Self> {
        let address = fixture.file("manager.sock");
        let program = program("manager", fixture.dir(), &["attach"], &[("--address", &address)])?;
        let begin = Instant::now();
        let mut service = Service::start(fixture, program)?;
        let namespace = fixture.namespace();
        let mut glue = None;
        service
            .until_seen(LOOK, async || {
                glue = Glue::connect(&address, namespace).await.ok();
                glue.is_some()
            })
            .await?;
        let glue = glue.ok_or_else(|| Failure::new("no connection to the manager"))?;
        let found = glue.load(surroundings).await?.tasks as usize;
        let ready_in = begin.elapsed();
        let wanted = surroundings.request.containers.len();
        if found != wanted {
            return Err(service.tell(&Failure::new(format!("{found} tasks of {wanted}"))));
        }
        Ok(Self { service, glue, ready_in })
    }

    /// Its process.
    pub(super) fn pid(&self) -> Result<u32> {
        self.service.pid().ok_or_else(|| Failure::new("the manager has ended"))
    }

    /// Ends it; containers run on.
    pub(super) async fn end(mut self) -> Result {
        ended(&mut self.service).await
    }
}

/// The manager as a daemon of its own, in front of containerd.
#[derive(Debug)]
pub(super) struct Daemon {
    service: Service,
    address: PathBuf,
    /// What is mounted for it.
    bound: Option<PathBuf>,
}

impl Daemon {
    /// Starts it on directories of its own, and waits until it serves.
    pub(super) async fn start(node: &Node<'_>) -> Result<Self> {
        let state = node.fixture.dir().join("state/daemon");
        std::fs::create_dir_all(&state)?;
        Self::start_at(node, &state.join("run"), &state.join("root")).await
    }

    /// The same over the shims of containerd. Its directory is refused, and rightly: this daemon, which only looks, has it
    /// under another name.
    pub(super) async fn start_over(node: &Node<'_>) -> Result<Self> {
        let state = node.fixture.dir().join("state/daemon");
        let (run, shims) = (state.join("run"), node.surroundings(&[]).request.state);
        std::fs::create_dir_all(&run)?;
        mount(Some(shims.as_str()), &run, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        let daemon = Self::start_at(node, &run, &state.join("root")).await?;
        Ok(Self { bound: Some(run), ..daemon })
    }

    async fn start_at(node: &Node<'_>, run: &Path, root: &Path) -> Result<Self> {
        let (address, behind) = (node.fixture.file("daemon.sock"), node.containerd.address());
        let flags = [
            ("--containerd", behind.as_path()),
            ("--address", &address),
            ("--state", run),
            ("--root", root),
        ];
        let program = program("daemon", node.fixture.dir(), &["serve"], &flags)?;
        let mut service = Service::start(node.fixture, program)?;
        service.until_seen(LOOK, async || is_served(&address).await).await?;
        Ok(Self { service, address, bound: None })
    }

    /// The socket.
    pub(super) fn address(&self) -> &Path {
        &self.address
    }

    /// Its process.
    pub(super) fn pid(&self) -> Result<u32> {
        self.service.pid().ok_or_else(|| Failure::new("the daemon has ended"))
    }

    /// A client of it.
    pub(super) async fn client(&self) -> Result<Grpc> {
        Grpc::connect_roomy(&self.address).await
    }

    /// Ends it; containers run on.
    pub(super) async fn end(mut self) -> Result {
        let ended = ended(&mut self.service).await;
        if let Some(bound) = &self.bound {
            umount2(bound, MntFlags::MNT_DETACH)?;
        }
        ended
    }
}

async fn ended(service: &mut Service) -> Result {
    match service.end(Signal::SIGTERM).await? {
        Some(0) => Ok(()),
        code => Err(service.tell(&Failure::new(format!("it ends with {code:?}")))),
    }
}

/// The manager's binary, which logs as on a node.
fn program(
    name: &'static str,
    dir: &Path,
    words: &[&str],
    flags: &[(&str, &Path)],
) -> Result<Program> {
    let flags =
        flags.iter().flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]);
    let arguments = words.iter().map(|&word| word.to_owned()).chain(flags).collect();
    let dir = dir.join(format!("{name}.d"));
    std::fs::create_dir_all(&dir)?;
    Ok(Program { name, binary: paths::manager()?, arguments, dir, environment: Vec::new() })
}

/// The OCI runtime that all of these cases use.
pub(super) fn runtime(bench: &super::ground::Bench) -> Result<&Runtime> {
    bench.quickest().ok_or_else(|| Failure::new("no OCI runtime"))
}
