//! Logging binaries: a program of the client's choice that reads a process's output itself.

use std::fs;
use std::path::Path;

use integration::container::Container;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::leak::{Kind, Snapshot, Usage};
use integration::logger::{Logger, running};
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim, is_alive};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::{deadline, ensure, ensure_eq, paths};
use sha2::{Digest, Sha256};

const SLEEP: [&str; 2] = ["sleep", "1000"];

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What `yes LINE | head -c COUNT` prints.
fn pattern(line: &str, count: usize) -> Vec<u8> {
    format!("{line}\n").bytes().cycle().take(count).collect()
}

#[test]
fn logger_gets_every_byte_and_nothing_but_what_it_is_told() -> Result {
    const SIZE: usize = 3 << 20;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for scheme in ["binary", "binary-v2"] {
            if scheme == "binary-v2" && paths::is_go_shim() {
                skip("Go's shims before 2.3 do not know it")?;
                continue;
            }
            let logger = Logger::copying(fixture, scheme)?;
            let stdio = logger.stdio(scheme, "?tag=a%20b&empty=&z=1&a=2&z=3");
            let script = format!("yes out | head -c {SIZE}; yes err | head -c {SIZE} >&2");
            let spec = Spec::shell(&script);
            let container = Container::run_with(fixture, scheme, &spec, &stdio, None).await?;
            ensure_eq!(
                container.shim.tasks.wait(container.id(), "").await?.exit_status,
                0,
                "{scheme}"
            );
            container.retire().await?;
            ensure_eq!(digest(&logger.bytes("out")?), digest(&pattern("out", SIZE)), "stdout");
            ensure_eq!(digest(&logger.bytes("err")?), digest(&pattern("err", SIZE)), "stderr");
            let mut env = logger.lines("env")?;
            env.sort();
            let id = format!("CONTAINER_ID={}", container.id());
            let namespace = format!("CONTAINER_NAMESPACE={}", fixture.namespace());
            ensure_eq!(env, [id, namespace], "environment, {scheme}");
            let mut args = logger.lines("args")?;
            if paths::is_go_shim() {
                args.sort();
                ensure_eq!(args.len(), 8, "arguments, {scheme}");
            } else {
                let right = ["tag", "a b", "empty", "", "z", "1", "a", "2"];
                ensure_eq!(args, right, "arguments, {scheme}");
            }
        }
        Ok(())
    })
}

#[test]
fn logger_of_an_exec_is_told_the_execs_id_and_goes_with_it() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims keep descriptors of such execs for a while");
    }
    const EXECS: usize = 5;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let mut before = None;
        for number in 0..EXECS {
            let name = format!("e{number}");
            let logger = Logger::copying(fixture, &name)?;
            let stdio = logger.stdio("binary", "");
            container.exec_with(&name, &["sh", "-c", "echo out; echo err >&2"], &stdio).await?;
            tasks.wait(id, &name).await?;
            tasks.delete(id, &name).await?;
            ensure_eq!(logger.bytes("out")?, b"out\n", "stdout");
            ensure_eq!(logger.bytes("err")?, b"err\n", "stderr");
            let told = logger.lines("env")?;
            ensure!(told.contains(&format!("CONTAINER_ID={name}")), "{told:?}");
            ensure!(!is_alive(logger.pid().await?), "the logger of {name} is left");
            let fds = Usage::of(container.shim.pid)?.fds.len();
            let first = *before.get_or_insert(fds);
            ensure_eq!(fds, first, "descriptors of the shim after {name}");
        }
        container.retire().await
    })
}

#[test]
fn logger_has_no_descriptors_but_its_own() -> Result {
    if paths::is_go_shim() {
        return skip("measured for the shim of this workspace");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let body = "$B ls -l /proc/$$/fd >$D/fds\n\
            exec 5>&-; $B cat <&3 >/dev/null & $B cat <&4 >/dev/null; wait";
        let logger = Logger::script(fixture, "a", body)?;
        // Others in the same shim, whose descriptors it must not get.
        let stdio = fixture.fifos("p")?;
        let spec = Spec::new(&SLEEP);
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec_with("e", &["true"], &logger.stdio("binary", "")).await?;
        tasks.wait(id, "e").await?;
        tasks.delete(id, "e").await?;
        let lines = logger.lines("fds")?;
        // The shell itself has the script open, at 10 or above.
        let number = |line: &String| {
            let fd = line.split_once(" -> ")?.0.rsplit(' ').next()?.parse::<u32>().ok()?;
            (fd < 10).then_some(fd)
        };
        let mut fds: Vec<u32> = lines.iter().filter_map(number).collect();
        fds.sort_unstable();
        ensure_eq!(fds, [0, 1, 2, 3, 4, 5], "descriptors: {lines:?}");
        container.retire().await
    })
}

#[test]
fn create_waits_until_the_logger_is_ready() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims answer nobody while they wait for a logger");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let body = "while [ ! -e $D/go ]; do $B usleep 10000; done\n\
            $B cat <&3 >$D/out 5>&- & $B cat <&4 >$D/err 5>&- &\n\
            echo >&5; exec 3<&- 4<&- 5>&-; wait";
        let logger = Logger::script(fixture, "a", body)?;
        let bundle = fixture.bundle("a", &Spec::shell("echo out"))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let stdio = logger.stdio("binary", "");
        let creation = {
            let (tasks, request) =
                (shim.tasks.clone(), integration::task::create_request(&bundle, &stdio));
            tokio::spawn(async move {
                let answer = tasks.call("Create", &request, deadline::HANG).await;
                answer.map(|answer: containerd_shim_protos::api::CreateTaskResponse| answer.pid)
            })
        };
        logger.pid().await?;
        // Others do not wait for this logger.
        shim.tasks.connect_task("nobody").await?;
        ensure!(bundle.file("init.pid").is_none(), "the container does not wait for its logger");
        ensure!(!creation.is_finished(), "create does not wait for the logger");
        fs::write(logger.dir.join("go"), "")?;
        creation.await??;
        shim.tasks.start(&bundle.id, "").await?;
        shim.tasks.wait(&bundle.id, "").await?;
        shim.retire(&bundle.id).await?;
        shim.gone().await?;
        ensure_eq!(logger.bytes("out")?, b"out\n", "stdout");
        Ok(())
    })
}

/// A Create with this logger, and what came of it; then the shim has to be as before.
async fn attempt(fixture: &Fixture, name: &str, stdio: &Stdio) -> Result<(Shim, String, String)> {
    let bundle = fixture.bundle(name, &Spec::shell("echo out"))?;
    let shim = Launch::new(fixture, &bundle).start().await?;
    let answer = shim.tasks.create(&bundle, stdio).await;
    Ok((shim, bundle.id, answer.err().map_or_else(String::new, |error| error.to_string())))
}

#[test]
fn logger_that_closes_without_a_word_is_ready_for_binary_and_not_for_binary_v2() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.3 do not know binary-v2");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let body = "exec 5>&-; $B cat <&3 >$D/out & $B cat <&4 >$D/err; wait";
        for (scheme, right) in [("binary", true), ("binary-v2", false)] {
            let logger = Logger::script(fixture, scheme, body)?;
            let (shim, id, error) = attempt(fixture, scheme, &logger.stdio(scheme, "")).await?;
            ensure_eq!(error.is_empty(), right, "{scheme}: {error}");
            if right {
                shim.tasks.start(&id, "").await?;
                shim.tasks.wait(&id, "").await?;
            } else {
                let program = logger.program.display().to_string();
                ensure!(error.contains(&program), "{error}");
                // It has been killed; when it gets to die is the scheduler's business.
                let gone = || running(fixture, &logger.program).is_empty();
                deadline::until("the end of the logger", deadline::HANG, gone).await?;
            }
            shim.retire(&id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn logger_that_is_never_ready_fails_create_in_time_and_is_killed() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims wait for ever");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let logger = Logger::script(fixture, "a", "while :; do $B usleep 20000; done")?;
        let (shim, id, error) = attempt(fixture, "a", &logger.stdio("binary", "")).await?;
        ensure!(error.contains(&logger.program.display().to_string()), "{error}");
        ensure!(!is_alive(logger.pid().await?), "the logger is left");
        shim.shutdown(&id).await?;
        shim.gone().await
    })
}

#[test]
fn logger_that_cannot_be_run_or_dies_early_fails_create_and_leaves_nothing() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.3 do not know binary-v2");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let dying = Logger::script(fixture, "dying", "exit 3")?;
        let plain = fixture.file("plain");
        fs::write(&plain, "no program")?;
        let missing = fixture.file("missing");
        let uri = |path: &Path| format!("binary-v2://{}", path.display());
        for (name, path) in [("dying", &dying.program), ("plain", &plain), ("missing", &missing)] {
            let stdio = Stdio { stdout: uri(path), stderr: uri(path), ..Stdio::default() };
            let (shim, id, error) = attempt(fixture, name, &stdio).await?;
            ensure!(error.contains(&path.display().to_string()), "{name}: {error}");
            ensure!(running(fixture, path).is_empty(), "{name} is left");
            let mounted = |item: &&integration::leak::Item| item.kind == Kind::Mount;
            let left = Snapshot::take(&fixture.scope()).items().filter(mounted).count();
            ensure_eq!(left, 0, "mounts after {name}");
            shim.shutdown(&id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn logger_reads_a_terminal_too() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims leave the logger of a terminal behind");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let logger = Logger::copying(fixture, "tty")?;
        let stdio = Stdio { terminal: true, stderr: String::new(), ..logger.stdio("binary", "") };
        container.exec_with("e", &["sh", "-c", "tty; echo err >&2"], &stdio).await?;
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 0, "exit status");
        tasks.delete(id, "e").await?;
        let text = String::from_utf8_lossy(&logger.bytes("out")?).into_owned();
        ensure!(text.starts_with("/dev/pts/") && text.ends_with("\r\nerr\r\n"), "{text:?}");
        ensure!(!is_alive(logger.pid().await?), "the logger is left");
        container.retire().await
    })
}

#[test]
fn standard_input_with_a_logger_is_no_reason_to_hang() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let logger = Logger::copying(fixture, "a")?;
        let fifos = fixture.fifos("a")?;
        let stdio = Stdio { stdin: fifos.stdin, ..logger.stdio("binary", "") };
        let spec = Spec::shell("cat; echo done");
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.close_io(id, "").await?;
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 0, "exit status");
        container.retire().await?;
        let out = logger.bytes("out")?;
        ensure!(out.ends_with(b"done\n"), "{out:?}");
        Ok(())
    })
}
