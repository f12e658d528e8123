//! The ends of logging binaries, and of those who wait for them.

use std::time::{Duration, Instant};

use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::leak::Usage;
use integration::logger::{Logger, running};
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::spec::{self, Spec};
use integration::{deadline, ensure, ensure_eq, paths};

const SLEEP: [&str; 2] = ["sleep", "1000"];

#[test]
fn process_outlives_a_logger_that_dies() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims let the process die with its logger");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        // It takes one line of each stream.
        let body = "echo >&5; exec 5>&-; read line <&3; echo $line >$D/out; exit 1";
        let logger = Logger::script(fixture, "a", body)?;
        // More than the pipe holds, and a status that tells of a failed write.
        let script =
            "echo first; yes | head -c 1000000 || exit 9; yes | head -c 1000000 >&2 || exit 9";
        let stdio = logger.stdio("binary", "");
        let spec = Spec::shell(script);
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        let waited = container.shim.tasks.wait(container.id(), "").await?;
        ensure_eq!(waited.exit_status, 0, "exit status");
        ensure_eq!(logger.bytes("out")?, b"first\n", "stdout");
        container.retire().await
    })
}

#[test]
fn logger_that_does_not_end_is_asked_and_then_killed() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let copy = "$B cat <&3 >$D/out & $B cat <&4 >$D/err & echo >&5; exec 3<&- 4<&- 5>&-\n";
        let obeys = format!(
            "trap 'echo asked >$D/asked; exit 0' TERM\n{copy}\
            while :; do $B usleep 20000; done"
        );
        let ignores = format!("trap '' TERM\n{copy}while :; do $B usleep 20000; done");
        for (name, body, longest) in [("obeys", obeys, 11), ("ignores", ignores, 30)] {
            let logger = Logger::script(fixture, name, &body)?;
            let (spec, stdio) = (Spec::shell("echo out; echo err >&2"), logger.stdio("binary", ""));
            let container = Container::run_with(fixture, name, &spec, &stdio, None).await?;
            let pid = logger.pid().await?;
            container.shim.tasks.wait(container.id(), "").await?;
            ensure!(is_alive(pid), "the logger ended by itself");
            let start = Instant::now();
            container.retire().await?;
            let took = start.elapsed();
            ensure!(took < Duration::from_secs(longest), "{name}: the delete took {took:?}");
            ensure!(!is_alive(pid), "the logger that {name} is left");
            ensure_eq!(logger.bytes("out")?, b"out\n", "stdout of {name}");
            ensure_eq!(logger.bytes("err")?, b"err\n", "stderr of {name}");
            let asked = logger.dir.join("asked").exists();
            ensure_eq!(asked, name == "obeys", "SIGTERM for {name}");
        }
        Ok(())
    })
}

#[test]
fn loggers_of_a_killed_container_with_living_execs_all_end() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims leave the loggers of execs behind");
    }
    const EXECS: usize = 4;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let init = Logger::copying(fixture, "init")?;
        let spec = Spec::new(&SLEEP);
        let stdio = init.stdio("binary", "");
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let mut loggers = vec![init];
        for number in 0..EXECS {
            let name = format!("e{number}");
            let logger = Logger::copying(fixture, &name)?;
            let process = spec::process(&["sh", "-c", "echo out; sleep 1000"]);
            tasks.exec(id, &name, &process, &logger.stdio("binary", "")).await?;
            tasks.start(id, &name).await?;
            loggers.push(logger);
        }
        for logger in loggers.iter().skip(1) {
            let said = || logger.bytes("out").is_ok_and(|out| out == b"out\n");
            deadline::until("the exec's line", deadline::HANG, said).await?;
        }
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        // The execs are not deleted: they go with their container.
        container.retire().await?;
        for logger in &loggers {
            ensure!(!is_alive(logger.pid().await?), "{} is left", logger.program.display());
        }
        Ok(())
    })
}

#[test]
fn hundred_loggers_one_after_another_leave_the_shim_as_it_was() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not wait until the logger has read");
    }
    const ROUNDS: usize = 100;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let logger = Logger::copying(fixture, "many")?;
        let mut base = None;
        for round in 0..ROUNDS {
            let name = format!("e{round}");
            container.exec_with(&name, &["echo", &name], &logger.stdio("binary", "")).await?;
            tasks.wait(id, &name).await?;
            tasks.delete(id, &name).await?;
            ensure_eq!(logger.lines("out")?, [name], "stdout");
            base = base.or(Some(Usage::of(container.shim.pid)?.fds.len()));
        }
        let now = Usage::of(container.shim.pid)?;
        let base = base.ok_or_else(|| Failure::new("no round"))?;
        ensure_eq!(now.fds.len(), base, "descriptors {:?}", now.fds);
        ensure!(running(fixture, &logger.program).is_empty(), "loggers are left");
        container.retire().await
    })
}
