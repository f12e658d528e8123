//! An OCI runtime that hangs: in whatever it hangs, the container can be ended and deleted, and everybody is answered.

use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::scenario::scenario;
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Answer, TaskClient};
use integration::{ensure, ensure_eq, paths};
use serde_json::json;
use tokio::task::JoinSet;
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];

async fn call(tasks: &TaskClient, verb: &str, id: &str) -> Answer<()> {
    match verb {
        "pause" => tasks.pause(id).await,
        "resume" => tasks.resume(id).await,
        "update" => tasks.update(id, &json!({})).await,
        _ => tasks.checkpoint(id, "/nowhere", None).await,
    }
}

#[test]
fn container_that_ends_while_the_runtime_hangs_can_be_deleted() -> Result {
    if paths::is_go_shim() {
        return integration::scenario::skip(
            "Go's shims wait for the runtime until their caller goes",
        );
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let (spec, none) = (Spec::new(&SLEEP), Stdio::null());
        let verbs = ["pause", "resume", "update", "checkpoint"];
        let (mut containers, mut rules, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        for verb in verbs {
            let container =
                Container::run_with(fixture, verb, &spec, &none, Some(&fake.path)).await?;
            if verb == "resume" {
                container.shim.tasks.pause(container.id()).await?;
            }
            let gate = Gate::new(fixture, verb);
            let rule = Rule::on(verb).of(container.id());
            rules.push(Rule { gate: Some(gate.path.clone()), ..rule });
            gates.push(gate);
            containers.push(container);
        }
        fake.obey(&rules)?;
        let (mut hanging, mut deletes) = (JoinSet::new(), JoinSet::new());
        for ((verb, container), gate) in verbs.into_iter().zip(&containers).zip(&gates) {
            let (tasks, id) = (container.shim.tasks.clone(), container.id().to_owned());
            hanging.spawn(async move { (verb, call(&tasks, verb, &id).await) });
            gate.reached().await?;
            container.shim.tasks.kill(container.id(), "", 9).await?;
            sink.wait_for_word(container.id(), "exit").await?;
            let (tasks, id) = (container.shim.tasks.clone(), container.id().to_owned());
            deletes.spawn(async move { (verb, tasks.delete(&id, "").await) });
        }
        while let Some(done) = hanging.join_next().await {
            let (verb, answer) = done?;
            let code = answer.err().and_then(|error| error.code());
            ensure_eq!(code, Some(Code::FAILED_PRECONDITION), "the {verb} that hung");
        }
        while let Some(done) = deletes.join_next().await {
            let (verb, deleted) = done?;
            let deleted = deleted.map_err(|error| Failure::new(format!("{verb}: {error}")))?;
            ensure_eq!(deleted.exit_status, 137, "status, {verb}");
        }
        for container in &containers {
            container.shim.shutdown(container.id()).await?;
            container.shim.gone().await?;
            let words = sink.words(container.id())?;
            ensure!(words.ends_with(&["exit".into(), "delete".into()]), "events {words:?}");
        }
        Ok(())
    })
}

#[test]
fn runtime_that_prints_without_measure_is_read_to_its_end() -> Result {
    /// More than the shim keeps, and far more than a pipe holds.
    const PRINTED: usize = 6 << 20;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let (spec, none) = (Spec::new(&SLEEP), Stdio::null());
        let container = Container::run_with(fixture, "a", &spec, &none, Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let floods = |verb: &str| Rule { stdout: "x".repeat(PRINTED), ..Rule::on(verb) };
        fake.obey(&[
            floods("pause"),
            floods("resume"),
            Rule { exit: Some(1), ..floods("update") },
        ])?;
        tasks.pause(id).await?;
        tasks.resume(id).await?;
        ensure!(tasks.update(id, &json!({})).await.is_err(), "an update that failed");
        tasks.state(id, "").await?;
        container.retire().await
    })
}

#[test]
fn pid_file_that_is_none_fails_its_call_and_holds_up_nothing() -> Result {
    if paths::is_go_shim() {
        return integration::scenario::skip("Go's shims read it for as long as it takes");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let runc = paths::runc()?;
        let spec = Spec::new(&SLEEP);
        let container = Container::run(fixture, "a", &spec).await?;
        for what in ["mkfifo \"$file\"", "ln -s /dev/zero \"$file\"", "mkdir \"$file\""] {
            // It makes the container, and something else of the pid file.
            let lying = fixture.file("lying");
            let script = format!(
                "#!/bin/sh\n{runc} \"$@\" || exit 1\nfor word; do\n\
                 [ \"$last\" = --pid-file ] && file=$word && rm \"$file\" && {what}\nlast=$word\ndone\nexit 0\n",
                runc = runc.display()
            );
            std::fs::write(&lying, script)?;
            std::fs::set_permissions(&lying, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            let bundle = fixture.bundle(&format!("b{}", what.len()), &spec)?;
            let options = integration::container::with_runtime(&lying)?;
            let none = Stdio::null();
            let created = container.shim.tasks.create_with(&bundle, &none, Some(options)).await;
            let error = created.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(error.contains("pid file"), "{what}: {error:?}");
            container.shim.tasks.state(container.id(), "").await?;
        }
        container.retire().await
    })
}
