//! Calls of a containerd's plugin: what is refused and how, what is undone, and that nobody waits for anybody else.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use containerd_shim_protos::api;
use integration::attach::{Attach, Glue, Surroundings, code_of, command, own_request};
use integration::deadline::HANG;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::fixture::Fixture;
use integration::metrics::value;
use integration::scenario::scenario;
use integration::shim::{is_alive, runc_options};
use integration::spec::Spec;
use integration::task::{Answer, TaskClient, V2};
use integration::{deadline, ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime_proto::NAMESPACE_KEY;
use runtime_proto::manager::{self, CreateRequest, GetRequest};
use runtime_proto::protobuf::Message;
use runtime_proto::types::Empty;
use ttrpc::Code;

fn sleeper(fixture: &Fixture, name: &str) -> Result<CreateRequest> {
    own_request(fixture, name, Spec::new(&["sleep", "1000"]))
}

#[test]
fn before_a_load_everything_is_unavailable() -> Result {
    scenario(async |fixture| {
        let attach = Attach::start(fixture).await?;
        let glue = attach.glue().await?;
        ensure_eq!(code_of(glue.get("x").await)?, Code::UNAVAILABLE, "Get");
        ensure_eq!(code_of(glue.list().await)?, Code::UNAVAILABLE, "List");
        ensure_eq!(code_of(glue.tasks.state("x", "").await)?, Code::UNAVAILABLE, "State");
        let create = glue.create(&sleeper(fixture, "x")?).await;
        ensure_eq!(code_of(create)?, Code::UNAVAILABLE, "Create");
        attach.stop().await
    })
}

#[test]
fn metrics_count_what_was_called_and_what_was_found() -> Result {
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let request = sleeper(fixture, "x")?;
        let id = &request.id;
        glue.run(&request).await?;
        ensure_eq!(code_of(glue.get("ghost").await)?, Code::NOT_FOUND, "Get");
        // What nobody serves has one name, whatever it is called.
        for method in ["Frob", "Frobnicate"] {
            let unknown: Answer<Empty> = glue.call(method, &Empty::new()).await;
            ensure_eq!(code_of(unknown)?, Code::UNIMPLEMENTED, "{method}");
        }
        let page = attach.metrics().await?;
        for (name, wanted) in [
            ("calls_total{method=\"Load\",code=\"Ok\"}", 1.0),
            ("calls_total{method=\"Create\",code=\"Ok\"}", 1.0),
            ("calls_total{method=\"Start\",code=\"Ok\"}", 1.0),
            ("calls_total{method=\"Get\",code=\"NotFound\"}", 1.0),
            ("calls_total{method=\"unknown\",code=\"Unimplemented\"}", 2.0),
            ("call_duration_seconds_count{method=\"Create\"}", 1.0),
            ("shims{api=\"3\"}", 1.0),
        ] {
            ensure_eq!(value(&page, name), Some(wanted), "{name} in {page}");
        }
        // The next manager finds the task.
        attach.signal(Signal::SIGKILL).await?;
        let attach = Attach::start(fixture).await?;
        let glue = attach.glue().await?;
        glue.load(&Surroundings::at(fixture.dir(), &fixture.address())).await?;
        let limit = Instant::now() + HANG;
        // A load may go on when it is answered.
        while value(&attach.metrics().await?, "loaded_total{outcome=\"live\"}") != Some(1.0) {
            ensure!(Instant::now() < limit, "not counted: {}", attach.metrics().await?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        glue.remove(id).await?;
        let page = attach.metrics().await?;
        let deleted = "calls_total{method=\"Delete\",code=\"Ok\"}";
        ensure_eq!(value(&page, deleted), Some(1.0), "{deleted} in {page}");
        attach.stop().await
    })
}

#[test]
fn a_load_that_cannot_work_is_refused_and_one_that_can_is_taken_after_it() -> Result {
    scenario(async |fixture| {
        let attach = Attach::start(fixture).await?;
        let glue = attach.glue().await?;
        let good = Surroundings::at(fixture.dir(), &fixture.address());
        let mut other = good.clone();
        other.request.protocol_major += 1;
        ensure_eq!(code_of(glue.load(&other).await)?, Code::FAILED_PRECONDITION, "version");
        let mut bad = good.clone();
        "relative".clone_into(&mut bad.request.state);
        ensure_eq!(code_of(glue.load(&bad).await)?, Code::INVALID_ARGUMENT, "state");
        let mut newer = good.clone();
        newer.request.protocol_minor += 7;
        let answer = glue.load(&newer).await?;
        ensure_eq!((answer.protocol_major, answer.tasks), (1, 0), "answer");
        // Again, by a containerd that has come back, upgraded.
        let mut again = good.clone();
        "3.0.0".clone_into(&mut again.request.containerd_version);
        glue.load(&again).await?;
        let mut elsewhere = good.clone();
        elsewhere.request.root.push_str("-other");
        let code = code_of(glue.load(&elsewhere).await)?;
        ensure_eq!(code, Code::FAILED_PRECONDITION, "other surroundings");
        attach.stop().await
    })
}

#[test]
fn a_state_directory_is_waited_for_and_not_shared() -> Result {
    scenario(async |fixture| {
        let surroundings = Surroundings::at(fixture.dir(), &fixture.address());
        let first = Attach::start_at(fixture, "first").await?;
        first.glue().await?.load(&surroundings).await?;
        let second = Attach::start_at(fixture, "second").await?;
        let glue = second.glue().await?;
        ensure_eq!(code_of(glue.load(&surroundings).await)?, Code::FAILED_PRECONDITION, "shared");
        let (loaded, stopped) = tokio::join!(glue.load(&surroundings), first.stop());
        loaded?;
        stopped?;
        second.stop().await
    })
}

#[test]
fn a_socket_that_is_in_use_is_left_and_a_dead_one_replaced() -> Result {
    scenario(async |fixture| {
        let first = Attach::start(fixture).await?;
        let log = fixture.file("refused.log");
        let refused = deadline::ended(command(fixture, first.address(), &log)?).await?;
        ensure!(!refused.status.success(), "two of them serve one socket");
        ensure!(refused.stdout.is_empty(), "it says that it is ready");
        first.glue().await?;
        first.signal(Signal::SIGKILL).await?;
        let second = Attach::start(fixture).await?;
        second.glue().await?;
        ensure_eq!(second.signal(Signal::SIGTERM).await?, Some(0), "exit code");
        Ok(())
    })
}

#[test]
fn what_is_not_there_or_not_allowed_is_refused_by_code() -> Result {
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let request = sleeper(fixture, "one")?;
        let id = request.id.as_str();
        let pid = glue.run(&request).await?.pid;
        for unknown in ["none", "../one", ""] {
            ensure_eq!(code_of(glue.get(unknown).await)?, Code::NOT_FOUND, "Get {unknown}");
            ensure_eq!(code_of(glue.delete(unknown).await)?, Code::NOT_FOUND, "Delete {unknown}");
            let state = glue.tasks.state(unknown, "").await;
            ensure_eq!(code_of(state)?, Code::NOT_FOUND, "State {unknown}");
        }
        ensure_eq!(code_of(glue.tasks.state(id, "none").await)?, Code::NOT_FOUND, "State of exec");
        let mut odd = request.clone();
        "../x".clone_into(&mut odd.id);
        ensure_eq!(code_of(glue.create(&odd).await)?, Code::INVALID_ARGUMENT, "odd id");
        let mut nowhere = sleeper(fixture, "two")?;
        "io.containerd.nope.v9".clone_into(&mut nowhere.runtime);
        ensure_eq!(code_of(glue.create(&nowhere).await)?, Code::NOT_FOUND, "no such runtime");
        ensure_eq!(code_of(glue.create(&request).await)?, Code::ALREADY_EXISTS, "taken id");
        // These are the manager's.
        for method in ["Create", "Shutdown", "Delete"] {
            let mut named = api::DeleteRequest::new();
            id.clone_into(&mut named.id);
            let refused: Answer<Empty> = glue.tasks.call(method, &named, HANG).await;
            ensure_eq!(code_of(refused)?, Code::FAILED_PRECONDITION, "{method}");
        }
        let nope: Answer<Empty> = glue.call("Nope", &Empty::new()).await;
        ensure_eq!(code_of(nope)?, Code::UNIMPLEMENTED, "no such method");
        let v2 = glue.tasks.speaking(V2).state(id, "").await;
        ensure_eq!(code_of(v2)?, Code::UNIMPLEMENTED, "no such service");
        let nobody = Glue::connect(attach.address(), "").await?;
        ensure_eq!(code_of(nobody.get(id).await)?, Code::INVALID_ARGUMENT, "no namespace");
        let other = Glue::connect(attach.address(), "elsewhere").await?;
        ensure_eq!(code_of(other.get(id).await)?, Code::NOT_FOUND, "other namespace");
        ensure!(is_alive(pid), "the container has suffered");
        glue.remove(id).await?;
        ensure_eq!(code_of(glue.get(id).await)?, Code::NOT_FOUND, "after its end");
        attach.stop().await
    })
}

#[test]
fn a_runtime_tells_of_itself() -> Result {
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let info = glue.info("io.containerd.runc.v2").await?.info;
        let text = String::from_utf8_lossy(&info).into_owned();
        ensure!(text.contains("io.containerd.runc.v2"), "info: {text}");
        ensure!(code_of(glue.info("io.containerd.nope.v9").await).is_ok(), "no such runtime");
        attach.stop().await
    })
}

#[test]
fn a_shim_that_hangs_holds_nobody_up_and_costs_its_caller_no_more_than_its_deadline() -> Result {
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let (hangs, goes_on) = (sleeper(fixture, "hangs")?, sleeper(fixture, "goes")?);
        glue.run(&hangs).await?;
        glue.run(&goes_on).await?;
        let shim = glue.tasks.connect_task(&hangs.id).await?.shim_pid;
        let shim = Pid::from_raw(shim.try_into()?);
        kill(shim, Signal::SIGSTOP)?;
        // Over the same connection, and the first comes first.
        let waits: Vec<_> = (0..50).map(|_| tokio::spawn(wait(&glue.tasks, &hangs.id))).collect();
        for _ in 0..50 {
            glue.tasks.state(&goes_on.id, "").await?;
        }
        let mut asked = api::StateRequest::new();
        asked.id.clone_from(&hangs.id);
        let limit = Duration::from_millis(300);
        let late: Answer<api::StateResponse> = glue.tasks.call("State", &asked, limit).await;
        ensure!(late.is_err(), "a stopped shim answers");
        kill(shim, Signal::SIGCONT)?;
        glue.tasks.state(&hangs.id, "").await?;
        glue.tasks.kill(&hangs.id, "", 9).await?;
        for wait in waits {
            ensure_eq!(wait.await??, 137, "exit status");
        }
        glue.delete(&hangs.id).await?;
        glue.remove(&goes_on.id).await?;
        attach.stop().await
    })
}

fn wait(tasks: &TaskClient, id: &str) -> impl Future<Output = Answer<u32>> + use<> {
    let (tasks, id) = (tasks.clone(), id.to_owned());
    async move { tasks.wait(&id, "").await.map(|exit| exit.exit_status) }
}

/// The OCI runtime stands at a gate when the caller hangs up.
#[test]
fn a_create_whose_caller_goes_away_is_undone() -> Result {
    scenario(async |fixture| {
        let mut runtime = FakeRunc::install(fixture)?;
        let gate = Gate::new(fixture, "create");
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let mut options = containerd_shim_protos::shim::oci::Options::new();
        options.binary_name = runtime.path.display().to_string();
        let mut request = sleeper(fixture, "one")?;
        request.runtime_options = Some(runc_options(&options)?).into();
        runtime.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("create") }])?;
        let caller = attach.glue().await?;
        let asked = request.clone();
        let creating =
            tokio::spawn(async move { caller.create(&asked).await.map(|task| task.pid) });
        gate.reached().await?;
        ensure_eq!(code_of(glue.create(&request).await)?, Code::ALREADY_EXISTS, "taken meanwhile");
        creating.abort();
        let _ = creating.await;
        gate.open()?;
        let bundles = Surroundings::at(fixture.dir(), &fixture.address());
        let bundle = bundles.bundles(fixture.namespace()).join(&request.id);
        deadline::until("the bundle's end", HANG, || !bundle.exists()).await?;
        // The id is free, a moment after the bundle has gone.
        let mut created = glue.run(&request).await;
        while created.as_ref().err().is_some_and(|e| e.code() == Some(Code::ALREADY_EXISTS)) {
            created = glue.run(&request).await;
        }
        created?;
        glue.remove(&request.id).await?;
        attach.stop().await
    })
}

/// As the plugin does it: it gives up and stays to hear what became of it.
#[test]
fn a_caller_that_closes_its_half_is_answered_when_all_is_undone() -> Result {
    scenario(async |fixture| {
        let mut runtime = FakeRunc::install(fixture)?;
        let gate = Gate::new(fixture, "create");
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let mut options = containerd_shim_protos::shim::oci::Options::new();
        options.binary_name = runtime.path.display().to_string();
        let mut request = sleeper(fixture, "one")?;
        request.runtime_options = Some(runc_options(&options)?).into();
        runtime.obey(&[Rule { gate: Some(gate.path.clone()), ..Rule::on("create") }])?;
        let mut stream = UnixStream::connect(attach.address())?;
        stream.set_read_timeout(Some(HANG))?;
        let mut call = ttrpc::proto::Request::new();
        (call.service, call.method) = (manager::SERVICE.into(), "Create".into());
        call.payload = request.write_to_bytes()?;
        let mut namespace = ttrpc::proto::KeyValue::new();
        (namespace.key, namespace.value) = (NAMESPACE_KEY.into(), fixture.namespace().to_owned());
        call.metadata.push(namespace);
        let call = call.write_to_bytes()?;
        stream.write_all(&frame(u32::try_from(call.len())?, 1, &call))?;
        gate.reached().await?;
        stream.shutdown(Shutdown::Write)?;
        gate.open()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = ttrpc::Response::parse_from_bytes(answer.get(10..).unwrap_or_default())?;
        ensure_eq!(answer.status().code(), Code::CANCELLED, "{}", answer.status().message);
        // Nothing has to be waited for any more.
        let bundles = Surroundings::at(fixture.dir(), &fixture.address());
        ensure!(!bundles.bundles(fixture.namespace()).join(&request.id).exists(), "a bundle");
        runtime.obey(&[])?;
        glue.run(&request).await?;
        glue.remove(&request.id).await?;
        attach.stop().await
    })
}

fn frame(length: u32, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(stream.to_be_bytes());
    bytes.extend([1, 0]);
    bytes.extend(payload);
    bytes
}

#[test]
fn bytes_that_are_no_calls_hurt_nobody_else() -> Result {
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let request = sleeper(fixture, "one")?;
        glue.run(&request).await?;
        let pid = attach.pid().unwrap_or_default();
        let descriptors =
            || std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let before = descriptors();
        for round in 0_u32..200 {
            let mut stream = UnixStream::connect(attach.address())?;
            let noise: Vec<u8> =
                (0..round * 7).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
            // Some end in the middle of a frame, some claim more than there is.
            let garbage = match round % 4 {
                0 => noise,
                1 => frame(u32::MAX, 1, &noise),
                2 => frame(4, round, &noise),
                _ => frame(u32::try_from(noise.len())?, 1, &noise),
            };
            // The manager may have hung up already.
            let _ = stream.write_all(&garbage);
        }
        // Too large for a message, and then a good one on the same connection.
        let mut stream = UnixStream::connect(attach.address())?;
        stream.set_read_timeout(Some(HANG))?;
        let large = vec![0; 5 << 20];
        stream.write_all(&frame(u32::try_from(large.len())?, 1, &large))?;
        let mut head = [0; 10];
        stream.read_exact(&mut head)?;
        ensure_eq!(head[4..9], [0, 0, 0, 1, 2], "an answer to the large one");
        glue.tasks.state(&request.id, "").await?;
        let mut broken = GetRequest::new();
        broken.id = "x".repeat(1 << 20);
        let found: Answer<Empty> = glue.call("Get", &broken).await;
        ensure_eq!(code_of(found)?, Code::NOT_FOUND, "a long id");
        drop(stream);
        deadline::until("the connections' ends", HANG, || descriptors() <= before).await?;
        glue.remove(&request.id).await?;
        attach.stop().await
    })
}

/// Whoever has no containerd at hand, and another shim in its `PATH`.
#[test]
fn tasks_of_a_sandbox_live_in_its_shim() -> Result {
    let go = paths::containerd("2").map(|dir| dir.join("containerd-shim-runc-v2"));
    for shim in [Some(paths::shim()?), go].into_iter().flatten() {
        scenario(async |fixture| {
            let _events = fixture.fake_containerd()?;
            let (attach, glue) = Attach::alone(fixture).await?;
            fixture.offer("containerd-shim-runc-v2", &shim)?;
            members(fixture, attach, glue).await
        })?;
    }
    Ok(())
}

async fn members(fixture: &Fixture, attach: Attach<'_>, glue: Glue) -> Result {
    let pod = sleeper(fixture, "pod")?;
    let home = glue.run(&pod).await?;
    let member = |name: &str, known: bool| -> Result<CreateRequest> {
        let mut request = sleeper(fixture, name)?;
        request.sandbox_id.clone_from(&pod.id);
        request.sandbox_known = known;
        Ok(request)
    };
    let (plain, stranger) = (member("plain", true)?, member("stranger", false)?);
    let mut told = member("told", true)?;
    (told.task_api_address, told.task_api_version) = (home.address.clone(), home.version);
    ensure_eq!(home.version, 3, "version of the pod's shim");
    for request in [&plain, &told] {
        let task = glue.run(request).await?;
        ensure_eq!(task.address, home.address, "shim of {}", request.id);
        let noted = std::fs::read_to_string(format!("{}/sandbox", task.bundle))?;
        ensure_eq!(noted, pod.id, "the bundle's sandbox");
    }
    ensure!(glue.run(&stranger).await?.address != home.address, "an unknown sandbox is joined");
    let mut lost = member("lost", true)?;
    "gone".clone_into(&mut lost.sandbox_id);
    ensure_eq!(code_of(glue.create(&lost).await)?, Code::NOT_FOUND, "no shim of that sandbox");
    // A next manager finds them where they are.
    attach.signal(Signal::SIGKILL).await?;
    let attach = Attach::start(fixture).await?;
    let glue = attach.glue().await?;
    let loaded = glue.load(&Surroundings::at(fixture.dir(), &fixture.address())).await?;
    ensure_eq!((loaded.tasks, loaded.removed), (4, 0), "found and removed");
    for request in [&plain, &told, &stranger] {
        glue.remove(&request.id).await?;
    }
    ensure!(is_alive(home.pid), "the sandbox ended with a member");
    glue.remove(&pod.id).await?;
    attach.stop().await
}
