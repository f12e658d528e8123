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
