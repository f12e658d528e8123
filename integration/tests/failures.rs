//! What failures say: whatever is asked of a shim, the answer names the container, and the exec, that it is about, and what
//! is wrong in the words that containerd's shims have for it, which clients and people look for.

use containerd_shim_protos::api;
use containerd_shim_protos::protobuf::Message;
use integration::bundle::Bundle;
use integration::container::Container;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Rule};
use integration::scenario::{scenario, skip};
use integration::spec::{self, Spec};
use integration::stdio::Stdio;
use integration::task::{Answer, TaskClient, create_request};
use integration::{deadline, ensure, ensure_eq, paths};
use serde_json::json;
use ttrpc::Code;

const SLEEP: [&str; 2] = ["sleep", "1000"];

/// All methods of the service.
const METHODS: [&str; 17] = [
    "State",
    "Create",
    "Start",
    "Delete",
    "Pids",
    "Pause",
    "Resume",
    "Checkpoint",
    "Kill",
    "Exec",
    "ResizePty",
    "CloseIO",
    "Update",
    "Wait",
    "Stats",
    "Connect",
    "Shutdown",
];

/// Those of one process; the others are of containers.
const OF_A_PROCESS: [&str; 7] =
    ["State", "Start", "Delete", "Kill", "ResizePty", "CloseIO", "Wait"];

/// The call of a method that can be taken for well-meant.
async fn call(tasks: &TaskClient, method: &str, id: &str, exec: &str) -> Answer<()> {
    // The ids are the first fields of all requests that have them.
    let mut request = api::StateRequest::new();
    (request.id, request.exec_id) = (id.to_owned(), exec.to_owned());
    match method {
        "Create" => {
            let mut create = api::CreateTaskRequest::new();
            (create.id, create.bundle) = (id.to_owned(), "/nowhere".to_owned());
            tasks.call::<api::Empty>(method, &create, deadline::HANG).await.map(drop)
        }
        "Exec" => tasks.exec(id, exec, &spec::process(&["true"]), &Stdio::null()).await,
        "Update" => tasks.update(id, &json!({})).await,
        "Checkpoint" => tasks.checkpoint(id, "/nowhere", None).await,
        "Kill" => tasks.kill(id, exec, 9).await,
        _ => {
            // Fields that an answer has and Empty has not are passed over.
            tasks.call::<api::Empty>(method, &request, deadline::HANG).await.map(drop)
        }
    }
}

/// The failure of a call, and that it begins with whom it is about and says this.
fn check(answer: Answer<()>, case: &str, subject: &str, words: &str) -> Result<Option<Code>> {
    let Err(error) = answer else {
        return Err(integration::failure::Failure::new(format!("{case}: done")));
    };
    let said = error.to_string();
    let text = said.split_once(": ").map_or("", |(_, text)| text);
    ensure!(text.starts_with(&format!("{subject}: ")), "{case}: not of {subject}: {said}");
    ensure!(text.contains(words), "{case}: no {words:?} in {said}");
    Ok(error.code())
}

#[test]
fn every_failure_names_the_container_and_the_exec() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims name few");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for method in METHODS {
            let answer = call(tasks, method, "ghost", "").await;
            match method {
                // They fail for no id.
                "Connect" | "Shutdown" => answer?,
                "Create" => {
                    check(answer, method, "container ghost", "/nowhere")?;
                }
                _ => {
                    let code = check(answer, method, "container ghost", "container not created")?;
                    ensure_eq!(code, Some(Code::NOT_FOUND), "{method}");
                }
            }
        }
        for method in OF_A_PROCESS {
            let subject = format!("exec e of container {id}");
            let answer = call(tasks, method, id, "e").await;
            let code = check(answer, method, &subject, "process does not exist e")?;
            ensure_eq!(code, Some(Code::NOT_FOUND), "{method}");
        }
        container.retire().await
    })
}

#[test]
fn what_a_state_refuses_names_whose_state_it_is() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims name few");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &SLEEP).await?;
        let (of_init, of_exec) = (format!("container {id}"), format!("exec e of container {id}"));
        for (method, words) in [
            ("Start", "cannot start a running process"),
            ("Resume", "cannot resume a running process"),
            ("Delete", "cannot delete a running process"),
        ] {
            let code = check(call(tasks, method, id, "").await, method, &of_init, words)?;
            ensure_eq!(code, Some(Code::FAILED_PRECONDITION), "{method}");
        }
        for (method, code, words) in [
            ("Start", Code::FAILED_PRECONDITION, "cannot start a running process"),
            ("Delete", Code::FAILED_PRECONDITION, "cannot delete a running process"),
            ("Exec", Code::ALREADY_EXISTS, "id e: already exists"),
        ] {
            let said = check(call(tasks, method, id, "e").await, method, &of_exec, words)?;
            ensure_eq!(said, Some(code), "{method}");
        }
        let again = tasks.create(&container.bundle, &Stdio::null()).await.map(drop);
        ensure_eq!(check(again, "Create", &of_init, "in use")?, Some(Code::ALREADY_EXISTS), "code");
        tasks.kill(id, "e", 9).await?;
        tasks.wait(id, "e").await?;
        let kill = tasks.kill(id, "e", 9).await;
        let code = check(kill, "Kill", &of_exec, "process already finished")?;
        ensure_eq!(code, Some(Code::NOT_FOUND), "kill of an ended exec");
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        for method in ["Start", "Pause", "Resume", "Checkpoint", "Exec", "Update"] {
            let exec = if method == "Exec" { "f" } else { "" };
            let subject =
                if exec.is_empty() { of_init.clone() } else { format!("exec f of {of_init}") };
            let code =
                check(call(tasks, method, id, exec).await, method, &subject, "stopped process")?;
            ensure_eq!(code, Some(Code::FAILED_PRECONDITION), "{method}");
        }
        container.retire().await
    })
}

#[test]
fn what_the_runtime_says_names_whom_it_says_it_of() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims name few");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let mut fake = FakeRunc::install(fixture)?;
        let spec = Spec::new(&SLEEP);
        let container =
            Container::create(fixture, "a", &spec, &Stdio::null(), Some(&fake.path)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let subject = format!("container {id}");
        let verbs = ["start", "exec", "kill", "pause", "ps", "update", "checkpoint"];
        let rules: Vec<Rule> = verbs.iter().map(|verb| Rule::on(verb).fails("a bad day")).collect();
        fake.obey(&rules)?;
        let start = call(tasks, "Start", id, "").await;
        check(start, "start", &subject, "OCI runtime start failed: a bad day")?;
        fake.obey(&[])?;
        tasks.start(id, "").await?;
        fake.obey(&rules)?;
        for (method, words) in [
            ("Kill", "unknown error after kill: OCI runtime kill failed: a bad day"),
            ("Pause", "OCI runtime pause failed: a bad day"),
            ("Pids", "OCI runtime ps failed: a bad day"),
            ("Update", "OCI runtime update failed: a bad day"),
            ("Checkpoint", "OCI runtime checkpoint failed: a bad day"),
        ] {
            check(call(tasks, method, id, "").await, method, &subject, words)?;
        }
        tasks.exec(id, "e", &spec::process(&["true"]), &Stdio::null()).await?;
        let exec = call(tasks, "Start", id, "e").await;
        let words = "OCI runtime exec failed: a bad day";
        check(exec, "exec", &format!("exec e of {subject}"), words)?;
        tasks.delete(id, "e").await?;
        fake.obey(&[
            Rule::on("create").fails("a bad day"),
            Rule::on("delete").fails("a worse one"),
        ])?;
        let other = fixture.bundle("b", &spec)?;
        let create = create_with(tasks, &other, &fake).await;
        let words = "OCI runtime create failed: a bad day";
        check(create, "create", &format!("container {}", other.id), words)?;
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        let delete = call(tasks, "Delete", id, "").await;
        check(delete, "delete", &subject, "failed to delete task: a worse one")?;
        fake.obey(&[])?;
        container.retire().await
    })
}

async fn create_with(tasks: &TaskClient, bundle: &Bundle, fake: &FakeRunc) -> Answer<()> {
    let options = integration::container::with_runtime(&fake.path).ok();
    tasks.create_with(bundle, &Stdio::null(), options).await.map(drop)
}

#[test]
fn an_id_that_is_none_is_told_in_one_short_line() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims leave ids to the runtime");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let tasks = &container.shim.tasks;
        let long = "x\u{7}\n".repeat(100_000);
        for id in ["", "../x", "a\nb", ".", "-rf", long.as_str()] {
            let mut request = create_request(&container.bundle, &Stdio::null());
            id.clone_into(&mut request.id);
            ensure!(request.write_to_bytes().is_ok(), "not sent");
            let answer = tasks.call::<api::Empty>("Create", &request, deadline::HANG).await;
            let error = answer.err().map(|error| (error.code(), error.to_string()));
            let (code, said) = error.unwrap_or_default();
            ensure_eq!(code, Some(Code::INVALID_ARGUMENT), "{said}");
            ensure!(said.contains("invalid container id"), "{said}");
            ensure!(said.len() < 1000 && !said.contains(['\n', '\u{7}']), "{said}");
        }
        container.retire().await
    })
}
