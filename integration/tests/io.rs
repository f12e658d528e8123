//! Standard streams without a terminal: what goes in comes out, whole, and nobody waits for a peer that does not come.

use std::io::Read;
use std::time::{Duration, Instant};

use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::leak::Usage;
use integration::scenario::{scenario, skip};
use integration::spec::{self, Spec};
use integration::stdio::{Input, Stdio, collect};
use integration::{deadline, ensure, ensure_eq, paths};
use sha2::{Digest, Sha256};

/// What `yes LINE | head -c COUNT` prints.
fn pattern(line: &str, count: usize) -> Vec<u8> {
    format!("{line}\n").bytes().cycle().take(count).collect()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn output_comes_out_on_the_stream_it_was_written_to() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = fixture.fifos("a")?.without_stdin();
        let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
        let spec = Spec::shell("echo to-out; echo to-err >&2");
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        ensure_eq!(out.text().await?, "to-out\n", "stdout");
        ensure_eq!(err.text().await?, "to-err\n", "stderr");
        container.retire().await
    })
}

#[test]
fn large_output_is_whole_when_the_process_ends_at_once_and_is_deleted_at_once() -> Result {
    const SIZE: usize = 8 << 20;
    const ROUNDS: usize = 4;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for round in 0..ROUNDS {
            let name = format!("e{round}");
            let stdio = fixture.fifos(&name)?.without_stdin();
            let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
            let script = format!("yes out | head -c {SIZE}; yes err | head -c {SIZE} >&2");
            container.exec_with(&name, &["sh", "-c", &script], &stdio).await?;
            tasks.wait(id, &name).await?;
            tasks.delete(id, &name).await?;
            ensure_eq!(digest(&out.bytes().await?), digest(&pattern("out", SIZE)), "stdout");
            ensure_eq!(digest(&err.bytes().await?), digest(&pattern("err", SIZE)), "stderr");
        }
        container.retire().await
    })
}

#[test]
fn reader_that_comes_late_and_reads_slowly_gets_everything() -> Result {
    const SIZE: usize = 1 << 20;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = fixture.fifos("a")?.without_stdin();
        let error = collect(&stdio.stderr)?;
        let spec = Spec::shell(&format!("yes out | head -c {SIZE}"));
        let creation = Container::run_with(fixture, "a", &spec, &stdio, None);
        let late = {
            let path = stdio.stdout.clone();
            tokio::task::spawn_blocking(move || -> std::io::Result<Vec<u8>> {
                std::thread::sleep(Duration::from_millis(500));
                let mut fifo = std::fs::File::open(path)?;
                let (mut all, mut part) = (Vec::new(), [0; 16 << 10]);
                loop {
                    let count = fifo.read(&mut part)?;
                    if count == 0 {
                        return Ok(all);
                    }
                    all.extend(part.iter().take(count));
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        let container = creation.await?;
        container.shim.tasks.wait(container.id(), "").await?;
        let retired = container.retire();
        let (read, done) = tokio::join!(late, retired);
        done?;
        ensure_eq!(digest(&read??), digest(&pattern("out", SIZE)), "stdout");
        drop(error);
        Ok(())
    })
}

#[test]
fn stdout_survives_readers_that_come_and_go() -> Result {
    const VISITS: usize = 10;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = fixture.fifos("a")?.without_stdin();
        let error = collect(&stdio.stderr)?;
        // Ends with the number of a failed write.
        let spec = Spec::shell("i=0; while echo line; do usleep 5000; done; exit 99");
        let visit = |path: String| {
            tokio::task::spawn_blocking(move || -> std::io::Result<String> {
                let mut fifo = std::fs::File::open(path)?;
                let mut part = [0; 64];
                let count = fifo.read(&mut part)?;
                Ok(String::from_utf8_lossy(part.get(..count).unwrap_or_default()).into_owned())
            })
        };
        let first = visit(stdio.stdout.clone());
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        ensure!(first.await??.contains("line"), "the first reader got nothing");
        for number in 1..VISITS {
            let text = tokio::time::timeout(deadline::HANG, visit(stdio.stdout.clone())).await;
            let text =
                text.map_err(|_| Failure::new(format!("reader {number} gets nothing")))???;
            ensure!(text.contains("line"), "reader {number} got {text:?}");
        }
        let state = container.shim.tasks.state(container.id(), "").await?;
        ensure_eq!(state.exit_status, 0, "exit status");
        ensure!(integration::shim::is_alive(container.pid), "the container died of its readers");
        drop(error);
        container.retire().await
    })
}

#[test]
fn stdin_ends_with_close_io_after_everything_written_before() -> Result {
    const SIZE: usize = 1 << 20;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        let stdio = fixture.fifos("e")?;
        let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
        let process = spec::process(&["sha256sum"]);
        tasks.exec(id, "e", &process, &stdio).await?;
        let (started, input) = tokio::join!(tasks.start(id, "e"), Input::open(&stdio.stdin));
        started?;
        let mut input = input?;
        let bytes = pattern("in", SIZE);
        input.write(bytes.get(..SIZE / 2).unwrap_or_default()).await?;
        // A client that goes is a client that may come back: no end of stdin.
        drop(input);
        let mut again = Input::open(&stdio.stdin).await?;
        again.write(bytes.get(SIZE / 2..).unwrap_or_default()).await?;
        drop(again);
        tasks.close_io(id, "e").await?;
        tasks.wait(id, "e").await?;
        ensure_eq!(out.text().await?, format!("{}  -\n", digest(&bytes)), "what came in");
        tasks.close_io(id, "e").await?;
        tasks.delete(id, "e").await?;
        drop(err);
        container.retire().await
    })
}

#[test]
fn close_io_is_harmless_at_any_time() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.close_io(id, "").await?;
        let stdio = fixture.fifos("e")?;
        let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
        tasks.exec(id, "e", &spec::process(&["cat"]), &stdio).await?;
        // Before the start there is nothing to close yet: accepted or refused, but answered.
        drop(tasks.close_io(id, "e").await);
        ensure!(container.shim.is_alive(), "the shim is gone");
        tasks.start(id, "e").await?;
        tasks.close_io(id, "e").await?;
        tasks.close_io(id, "e").await?;
        tasks.wait(id, "e").await?;
        tasks.close_io(id, "e").await?;
        drop((out, err));
        container.retire().await
    })
}

#[test]
fn file_uri_collects_both_streams() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let file = fixture.file("logs/deep/a.log");
        let uri = format!("file://{}", file.display());
        let stdio = Stdio { stdout: uri.clone(), stderr: uri, ..Stdio::null() };
        let spec = Spec::shell("echo to-out; echo to-err >&2");
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        container.shim.tasks.delete(container.id(), "").await?;
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.contains("to-out\n") && text.contains("to-err\n"), "{text:?}");
        container.retire().await
    })
}

#[test]
fn plain_file_is_appended_to() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let file = fixture.file("a.log");
        std::fs::write(&file, "before\n")?;
        let path = file.display().to_string();
        let stdio = Stdio { stdout: path.clone(), stderr: path, ..Stdio::null() };
        let spec = Spec::shell("echo to-out; echo to-err >&2");
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        container.shim.tasks.delete(container.id(), "").await?;
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.starts_with("before\n"), "{text:?}");
        ensure!(text.contains("to-out\n") && text.contains("to-err\n"), "{text:?}");
        container.retire().await
    })
}

#[test]
fn unknown_scheme_is_refused_by_name() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = Stdio { stdout: "gopher://x/y".to_owned(), ..Stdio::null() };
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = integration::shim::Launch::new(fixture, &bundle).start().await?;
        let answer = shim.tasks.create(&bundle, &stdio).await;
        let error = answer.err().ok_or_else(|| Failure::new("created"))?;
        ensure!(error.to_string().contains("gopher"), "{error}");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn without_streams_output_goes_nowhere_and_disturbs_nobody() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let script = "yes | head -c 1000000 2>/dev/null; [ -z \"$(cat)\" ] && exit 4";
        let container = Container::run(fixture, "a", &Spec::shell(script)).await?;
        let exit = container.shim.tasks.wait(container.id(), "").await?;
        ensure_eq!(exit.exit_status, 4, "exit status");
        container.retire().await
    })
}

/// A container whose shim has to serve while something else in it does not move.
async fn state_is_quick(container: &Container) -> Result {
    let start = Instant::now();
    container.shim.tasks.state(container.id(), "").await?;
    // Far above what a state costs, far below every time-out that could stand in its way.
    ensure!(start.elapsed() < Duration::from_secs(5), "state took {:?}", start.elapsed());
    Ok(())
}

#[test]
fn fifos_that_nobody_opens_hold_up_nothing_else() -> Result {
    const EXECS: usize = 24;
    if paths::is_go_shim() {
        return skip("Go's shim waits 10 s for each of these to be deleted");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let before = Usage::of(container.shim.pid)?;
        let mut starts = tokio::task::JoinSet::new();
        for number in 0..EXECS {
            let stdio = fixture.fifos(&format!("e{number}"))?;
            let (tasks, id) = (container.shim.tasks.clone(), container.id().to_owned());
            starts.spawn(async move {
                let name = format!("e{number}");
                tasks.exec(&id, &name, &spec::process(&["true"]), &stdio).await?;
                // It may start without peers or give up on them, but within bounds.
                if tasks.start(&id, &name).await.is_ok() {
                    tasks.wait(&id, &name).await?;
                }
                tasks.delete(&id, &name).await.map(drop)
            });
        }
        for _ in 0..10 {
            state_is_quick(&container).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while let Some(start) = starts.join_next().await {
            start??;
        }
        deadline::until("files and threads as before", deadline::HANG, || {
            Usage::of(container.shim.pid).is_ok_and(|now| {
                now.fds.len() <= before.fds.len() + 2 && now.threads <= before.threads + 1
            })
        })
        .await?;
        container.retire().await
    })
}

#[test]
fn fifo_that_does_not_exist_is_an_error_not_a_hang() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let gone = fixture.file("fifo/gone").display().to_string();
        let stdio = Stdio { stdout: gone.clone(), stderr: gone, ..Stdio::null() };
        ensure!(container.exec_with("e", &["true"], &stdio).await.is_err(), "the exec started");
        container.shim.tasks.delete(container.id(), "e").await?;
        container.retire().await
    })
}

#[test]
fn peers_that_keep_fifos_open_do_not_keep_the_shim() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = fixture.fifos("a")?;
        let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
        let container =
            Container::run_with(fixture, "a", &Spec::new(&["sleep", "1000"]), &stdio, None).await?;
        let mut input = Input::open(&stdio.stdin).await?;
        input.write(b"unread\n").await?;
        container.shim.retire(container.id()).await?;
        container.shim.gone_within(Duration::from_secs(20)).await?;
        drop((input, out, err));
        Ok(())
    })
}

#[test]
fn process_of_another_user_can_reopen_its_streams() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = fixture.fifos("a")?.without_stdin();
        let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
        let mut options = containerd_shim_protos::shim::oci::Options::new();
        (options.io_uid, options.io_gid) = (1000, 1000);
        let script = "echo out > /proc/self/fd/1 && echo err > /proc/self/fd/2";
        let spec = Spec::shell(script).user(1000, 1000);
        let bundle = fixture.bundle("a", &spec)?;
        let shim = integration::shim::Launch::new(fixture, &bundle).start().await?;
        let options = integration::shim::runc_options(&options)?;
        shim.tasks.create_with(&bundle, &stdio, Some(options)).await?;
        shim.tasks.start(&bundle.id, "").await?;
        let exit = shim.tasks.wait(&bundle.id, "").await?;
        ensure_eq!(exit.exit_status, 0, "exit status");
        ensure_eq!(
            (out.text().await?, err.text().await?),
            ("out\n".into(), "err\n".into()),
            "streams"
        );
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}

async fn calls(fixture: &Fixture, container: &Container, count: usize) -> Result {
    for _ in 0..count {
        container.shim.tasks.state(container.id(), "").await?;
        let unknown = container.shim.tasks.state(fixture.namespace(), "").await;
        ensure!(unknown.is_err(), "an unknown id has a state");
    }
    Ok(())
}

#[test]
fn log_that_nobody_reads_does_not_stop_the_shim() -> Result {
    const CALLS: usize = 5000;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["sleep", "1000"]))?;
        bundle.stop_reading_log();
        let shim = integration::shim::Launch::new(fixture, &bundle).debug().start().await?;
        let pid = shim.tasks.create(&bundle, &Stdio::null()).await?;
        shim.tasks.start(&bundle.id, "").await?;
        let container = Container { bundle, shim, pid };
        calls(fixture, &container, CALLS).await?;
        container.exec("e", &["true"]).await?;
        container.shim.tasks.wait(container.id(), "e").await?;
        container.retire().await
    })
}
