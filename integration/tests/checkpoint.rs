//! Checkpoint and restore. CRIU itself is not needed: the runtime's part is played by the stand-in.

use containerd_shim_protos::api::CreateTaskResponse;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::CheckpointOptions;
use integration::container::{Container, with_runtime};
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Rule};
use integration::fixture::Fixture;
use integration::scenario::scenario;
use integration::shim::Launch;
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Status, create_request};
use integration::{deadline, ensure, ensure_eq};

const SLEEP: [&str; 2] = ["sleep", "1000"];

fn options(change: impl FnOnce(&mut CheckpointOptions)) -> Result<Option<Any>> {
    let mut options = CheckpointOptions::new();
    change(&mut options);
    let mut any = Any::new();
    any.type_url = "containerd.runc.v1.CheckpointOptions".to_owned();
    any.value = options.write_to_bytes()?;
    Ok(Some(any))
}

async fn running(fixture: &Fixture, fake: &FakeRunc) -> Result<Container> {
    Container::run_with(fixture, "a", &Spec::new(&SLEEP), &Stdio::null(), Some(&fake.path)).await
}

#[test]
fn checkpoint_passes_paths_and_flags_and_leaves_the_container_running() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[Rule { skip: true, ..Rule::on("checkpoint") }])?;
        let work = fixture.file("criu-work").display().to_string();
        let image = fixture.file("image").display().to_string();
        let with = options(|options| {
            options.open_tcp = true;
            options.file_locks = true;
            options.work_path.clone_from(&work);
        })?;
        tasks.checkpoint(id, &image, with).await?;
        tasks.checkpoint(id, &image, None).await?;
        let calls = fake.calls_of("checkpoint")?;
        let call = calls.first().ok_or_else(|| Failure::new("no call"))?;
        ensure_eq!(call.value("--image-path"), Some(image.as_str()), "image");
        ensure_eq!(call.value("--work-path"), Some(work.as_str()), "work");
        for flag in ["--tcp-established", "--file-locks", "--leave-running"] {
            ensure!(call.has(flag), "no {flag} in {call:?}");
        }
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        container.retire().await
    })
}

#[test]
fn failing_checkpoint_says_where_the_log_of_the_dump_is() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let container = running(fixture, &fake).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        fake.obey(&[Rule::on("checkpoint").fails("criu says no")])?;
        let work = fixture.file("criu-work");
        std::fs::create_dir_all(&work)?;
        std::fs::write(work.join("dump.log"), "the reason\n")?;
        let with = options(|options| options.work_path = work.display().to_string())?;
        let image = fixture.file("image").display().to_string();
        let error = tasks.checkpoint(id, &image, with).await.err();
        let error = error.ok_or_else(|| Failure::new("dumped"))?.to_string();
        let log = container.bundle.dir.join("criu-dump.log");
        ensure!(error.contains(&log.display().to_string()), "{error}");
        ensure_eq!(std::fs::read_to_string(log)?, "the reason\n", "log");
        ensure_eq!(tasks.status(id, "").await?.enum_value_or_default(), Status::RUNNING, "status");
        container.retire().await
    })
}

#[test]
fn restored_container_has_its_pid_from_start_on() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule { restores: true, ..Rule::on("restore") }])?;
        let bundle = fixture.bundle("a", &Spec::new(&SLEEP))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let mut request = create_request(&bundle, &Stdio::null());
        let image = fixture.file("image");
        std::fs::create_dir_all(&image)?;
        request.checkpoint = image.display().to_string();
        request.options = Some(with_runtime(&fake.path)?).into();
        let id = bundle.id.as_str();
        let created: CreateTaskResponse =
            shim.tasks.call("Create", &request, deadline::HANG).await?;
        ensure_eq!(created.pid, 0, "pid of create");
        let status = shim.tasks.status(id, "").await?.enum_value_or_default();
        ensure_eq!(status, Status::CREATED, "status");
        let process = integration::spec::process(&["true"]);
        ensure!(shim.tasks.exec(id, "e", &process, &Stdio::null()).await.is_err(), "an exec early");
        let pid = shim.tasks.start(id, "").await?;
        ensure!(pid > 0 && integration::shim::is_alive(pid), "pid {pid}");
        ensure_eq!(shim.tasks.state(id, "").await?.pid, pid, "state");
        let calls = fake.calls_of("restore")?;
        let call = calls.first().ok_or_else(|| Failure::new("no call"))?;
        ensure_eq!(call.value("--image-path"), Some(image.display().to_string().as_str()), "image");
        ensure!(call.has("--detach"), "{call:?}");
        shim.retire(id).await?;
        shim.gone().await?;
        ensure_eq!(sink.words(id)?, ["create", "start", "exit", "delete"], "events");
        Ok(())
    })
}
