//! Mounts that only a containerd of 2.2 or later can make: it makes them before a task, and undoes them after it.

use std::fs;
use std::path::Path;

use integration::daemon::{Daemon, in_front_of};
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::grpc::{Answer, Grpc, field};
use integration::{ensure, ensure_eq, image, paths};
use ttrpc::Code;

const CREATE: &str = "/containerd.services.tasks.v1.Tasks/Create";
const START: &str = "/containerd.services.tasks.v1.Tasks/Start";

/// `containerd.types.Mount`
fn mount(kind: &str, source: &Path, options: &[String]) -> Vec<u8> {
    let source = source.display().to_string();
    let mut message = [field(1, kind.as_bytes()), field(2, source.as_bytes())].concat();
    for option in options {
        message.extend(field(4, option.as_bytes()));
    }
    message
}

/// A container whose root filesystem is an overlay over a mount that containerd is to make.
struct Layered<'a> {
    fixture: &'a Fixture,
    daemon: &'a Daemon<'a>,
    id: String,
}

impl<'a> Layered<'a> {
    async fn new(fixture: &'a Fixture, daemon: &'a Daemon<'a>, name: &str) -> Result<Self> {
        let id = daemon.id(name);
        daemon.must(&["containers", "create", image::NAME, &id, "sleep", "1000"]).await?;
        for dir in ["upper", "work"] {
            fs::create_dir_all(fixture.file(&format!("{name}-{dir}")))?;
        }
        Ok(Self { fixture, daemon, id })
    }

    /// Asks for a task, with more fields if need be.
    async fn create(&self, more: &[u8]) -> Result<Answer> {
        let lower = self.fixture.rootfs()?;
        let name = self.id.rsplit('-').next().unwrap_or_default().to_owned();
        let dir = |dir: &str| self.fixture.file(&format!("{name}-{dir}")).display().to_string();
        let overlay = [
            "lowerdir={{ mount 0 }}".to_owned(),
            format!("upperdir={}", dir("upper")),
            format!("workdir={}", dir("work")),
        ];
        let bind = mount("bind", &lower, &["rbind".to_owned(), "ro".to_owned()]);
        let overlay = mount("format/overlay", Path::new("overlay"), &overlay);
        let request =
            [&field(1, self.id.as_bytes()), &field(3, &bind), &field(3, &overlay), more].concat();
        let grpc = Grpc::connect(&self.daemon.address()).await?;
        grpc.unary(CREATE, self.fixture.namespace(), &request).await
    }

    async fn start(&self) -> Result {
        let grpc = Grpc::connect(&self.daemon.address()).await?;
        let request = field(1, self.id.as_bytes());
        let started = grpc.unary(START, self.fixture.namespace(), &request).await?;
        ensure_eq!(started.code, Code::OK, "start: {}", started.text);
        Ok(())
    }
}

/// Where containerd has mounted something of this test for its tasks.
fn mounted_by_containerd(fixture: &Fixture) -> Result<Vec<String>> {
    let place = fixture.file(&format!("c{}", paths::BUILT)).display().to_string();
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|point| point.starts_with(&place)).map(str::to_owned).collect())
}

#[test]
fn what_containerd_mounts_for_a_task_goes_with_it() -> Result {
    in_front_of(paths::BUILT, async |fixture, _, daemon| {
        let layered = Layered::new(fixture, daemon, "life").await?;
        let created = layered.create(&[]).await?;
        ensure_eq!(created.code, Code::OK, "create: {}", created.text);
        ensure_eq!(mounted_by_containerd(fixture)?.len(), 1, "mounts of containerd");
        layered.start().await?;
        let look = ["tasks", "exec", "--exec-id", "e", &layered.id, "ls", "/bin/sh"];
        ensure_eq!(daemon.must(&look).await?, "/bin/sh\n", "a file of the lower layer");
        daemon.remove(&layered.id).await?;
        ensure_eq!(mounted_by_containerd(fixture)?, Vec::<String>::new(), "mounts that stay");
        Ok(())
    })
}

#[test]
fn a_create_that_fails_undoes_its_mounts_and_no_others() -> Result {
    in_front_of(paths::BUILT, async |fixture, _, daemon| {
        let layered = Layered::new(fixture, daemon, "twice").await?;
        // There is no such shim: the create fails after the mounts were made.
        let failed = layered.create(&field(10, b"/no/such/shim")).await?;
        ensure!(failed.code != Code::OK, "it succeeds");
        ensure_eq!(mounted_by_containerd(fixture)?, Vec::<String>::new(), "mounts that stay");

        let first = layered.create(&[]).await?;
        ensure_eq!(first.code, Code::OK, "create: {}", first.text);
        let second = layered.create(&[]).await?;
        ensure_eq!(second.code, Code::ALREADY_EXISTS, "create of what is there: {}", second.text);
        ensure_eq!(mounted_by_containerd(fixture)?.len(), 1, "mounts of containerd");
        layered.start().await?;
        daemon.remove(&layered.id).await?;
        ensure_eq!(mounted_by_containerd(fixture)?, Vec::<String>::new(), "mounts that stay");
        Ok(())
    })
}

/// Several creates of one id at the same moment: one wins, and those that lose leave its mounts alone.
#[test]
fn creates_that_lose_leave_the_mounts_of_the_winner() -> Result {
    in_front_of(paths::BUILT, async |fixture, _, daemon| {
        for round in 0..5 {
            let layered = Layered::new(fixture, daemon, &format!("race{round}")).await?;
            let create = || layered.create(&[]);
            let (a, b, c) = tokio::try_join!(create(), create(), create())?;
            let codes = [a.code, b.code, c.code];
            let won = codes.iter().filter(|code| **code == Code::OK).count();
            ensure_eq!(won, 1, "creates that succeed, of {codes:?}");
            ensure_eq!(mounted_by_containerd(fixture)?.len(), 1, "mounts, round {round}");
            layered.start().await?;
            daemon.remove(&layered.id).await?;
            ensure_eq!(mounted_by_containerd(fixture)?, Vec::<String>::new(), "mounts that stay");
        }
        Ok(())
    })
}
