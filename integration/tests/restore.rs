//! Containers that come out of a checkpoint. criu itself is not needed: the runtime's part is played by the stand-in.

use containerd_shim_protos::api::CreateTaskResponse;
use containerd_shim_protos::shim::oci::Options;
use integration::bundle::Bundle;
use integration::container::with_runtime;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Rule};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim, is_alive, runc_options};
use integration::spec::{self, Spec};
use integration::stdio::Stdio;
use integration::task::{Answer, Status, create_request};
use integration::{deadline, ensure, ensure_eq, paths};
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];

fn code<T>(answer: Answer<T>) -> Option<Code> {
    answer.err().and_then(|error| error.code())
}

/// A shim with a container that is to be restored, by a Create with these options besides.
async fn restored(
    fixture: &Fixture,
    fake: &FakeRunc,
    change: impl FnOnce(&mut Options),
) -> Result<(Bundle, Shim)> {
    let bundle = fixture.bundle("a", &Spec::new(&SLEEP))?;
    let shim = Launch::new(fixture, &bundle).start().await?;
    let mut request = create_request(&bundle, &Stdio::null());
    request.checkpoint = fixture.file("image").display().to_string();
    let mut options = Options::new();
    options.binary_name = fake.path.display().to_string();
    change(&mut options);
    request.options = Some(runc_options(&options)?).into();
    let created: CreateTaskResponse = shim.tasks.call("Create", &request, deadline::HANG).await?;
    ensure_eq!(created.pid, 0, "pid of create");
    Ok((bundle, shim))
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
        let process = spec::process(&["true"]);
        ensure!(shim.tasks.exec(id, "e", &process, &Stdio::null()).await.is_err(), "an exec early");
        let pid = shim.tasks.start(id, "").await?;
        ensure!(pid > 0 && is_alive(pid), "pid {pid}");
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

#[test]
fn container_to_be_restored_costs_nothing_until_it_is_and_can_be_deleted() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install(fixture)?;
        let (bundle, shim) = restored(fixture, &fake, |_| {}).await?;
        let (id, tasks) = (bundle.id.as_str(), &shim.tasks);
        ensure!(fake.calls()?.is_empty(), "{:?}", fake.calls()?);
        ensure_eq!(tasks.connect_task(id).await?.task_pid, 0, "pid");
        ensure_eq!(code(tasks.stats(id).await), Some(Code::NOT_FOUND), "metrics");
        ensure!(tasks.pause(id).await.is_err(), "paused");
        // Who ends it by force is to go on to the delete.
        ensure_eq!(code(tasks.kill(id, "", 9).await), Some(Code::NOT_FOUND), "kill");
        tasks.delete(id, "").await?;
        ensure_eq!(code(tasks.state(id, "").await), Some(Code::NOT_FOUND), "after delete");
        shim.shutdown(id).await?;
        shim.gone().await?;
        ensure_eq!(sink.words(id)?, ["create", "delete"], "events");
        ensure!(fake.calls_of("restore")?.is_empty(), "restored");
        Ok(())
    })
}

#[test]
fn arguments_of_a_restore_are_those_of_the_options_of_create() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule { restores: true, ..Rule::on("restore") }])?;
        let work = fixture.file("criu").display().to_string();
        let (bundle, shim) = restored(fixture, &fake, |options| {
            options.no_pivot_root = true;
            options.no_new_keyring = true;
            options.criu_work_path.clone_from(&work);
        })
        .await?;
        let pid = shim.tasks.start(&bundle.id, "").await?;
        let calls = fake.calls_of("restore")?;
        let call = calls.first().ok_or_else(|| Failure::new("no call"))?;
        let (image, path) = (fixture.file("image").display().to_string(), bundle.path());
        let pid_file = format!("{path}/init.pid");
        let right = [
            "restore",
            "--image-path",
            &image,
            "--work-path",
            &work,
            "--detach",
            "--pid-file",
            &pid_file,
            "--no-pivot",
            "-no-subreaper",
            "--bundle",
            &path,
            &bundle.id,
        ];
        ensure_eq!(call.line(), right, "arguments");
        // From here on it is as any other: it has metrics, execs, and an end.
        ensure!(shim.tasks.stats(&bundle.id).await.is_ok(), "no metrics");
        let process = spec::process(&["true"]);
        shim.tasks.exec(&bundle.id, "e", &process, &Stdio::null()).await?;
        shim.tasks.start(&bundle.id, "e").await?;
        ensure_eq!(shim.tasks.wait(&bundle.id, "e").await?.exit_status, 0, "an exec");
        shim.tasks.kill(&bundle.id, "", 9).await?;
        ensure_eq!(shim.tasks.wait(&bundle.id, "").await?.exit_status, 137, "exit status");
        ensure_eq!(shim.tasks.delete(&bundle.id, "").await?.pid, pid, "pid");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn restore_that_fails_names_its_log_and_leaves_what_can_be_tried_again_or_deleted() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims cannot try again");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let (bundle, shim) = restored(fixture, &fake, |_| {}).await?;
        let (id, tasks) = (bundle.id.as_str(), &shim.tasks);
        let log = (bundle.dir.join("work/restore.log"), "no such image\n".to_owned());
        let failing = Rule::on("restore").fails("criu failed: type RESTORE errno 2");
        fake.obey(&[Rule { files: vec![log], ..failing }])?;
        let error = tasks.start(id, "").await.err();
        let error = error.ok_or_else(|| Failure::new("restored"))?.to_string();
        ensure!(error.contains("errno 2"), "{error}");
        let kept = error.rsplit(' ').next().unwrap_or_default();
        ensure_eq!(std::fs::read_to_string(kept)?, "no such image\n", "log {kept}");
        fake.obey(&[Rule { restores: true, ..Rule::on("restore") }])?;
        let pid = tasks.start(id, "").await?;
        ensure!(is_alive(pid), "pid {pid}");
        shim.retire(id).await?;
        shim.gone().await?;
        ensure_eq!(sink.words(id)?, ["create", "start", "exit", "delete"], "events");
        Ok(())
    })
}
