//! Processes on terminals.

use integration::container::Container;
use integration::failure::Result;
use integration::scenario::scenario;
use integration::spec::{self, Spec};
use integration::stdio::{Input, Stdio, collect};
use integration::{ensure, ensure_eq};
use ttrpc::Code;

#[test]
fn terminal_carries_input_output_and_size() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let stdio = Stdio::terminal(&fixture.file("fifo"), "a")?;
        let out = collect(&stdio.stdout)?;
        let script = "read go; stty size; tty; read word; echo got $word";
        let spec = Spec::shell(script).terminal();
        let container = Container::run_with(fixture, "a", &spec, &stdio, None).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.resize(id, "", 132, 43).await?;
        let mut input = Input::open(&stdio.stdin).await?;
        input.write(b"go\n").await?;
        input.write(b"hello\n").await?;
        ensure_eq!(tasks.wait(id, "").await?.exit_status, 0, "exit status");
        ensure!(tasks.state(id, "").await?.terminal, "the state knows of no terminal");
        tasks.resize(id, "", 80, 24).await.ok();
        container.retire().await?;
        let text = out.text().await?;
        ensure!(text.contains("43 132"), "no size in {text:?}");
        ensure!(text.contains("/dev/pts/"), "no terminal in {text:?}");
        ensure!(text.contains("got hello\r\n"), "no answer in {text:?}");
        Ok(())
    })
}

#[test]
fn size_of_no_terminal_is_nobodys_fault() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        container.exec("e", &["sleep", "1000"]).await?;
        tasks.resize(id, "e", 80, 24).await?;
        tasks.resize(id, "", 80, 24).await?;
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        // Clients send the size of their window at any time.
        tasks.resize(id, "", 80, 24).await?;
        container.retire().await
    })
}

#[test]
fn size_that_no_terminal_can_have_is_refused() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.exec(id, "e", &spec::process(&["sleep", "1000"]), &Stdio::null()).await?;
        for (exec, width, height) in [("e", 65_536, 24), ("e", 80, 70_000), ("", 65_536, 24)] {
            let refused = tasks.resize(id, exec, width, height).await.err();
            let code = refused.as_ref().and_then(|error| error.code());
            ensure_eq!(code, Some(Code::INVALID_ARGUMENT), "{exec:?}, {width} by {height}");
            let (text, number) = (format!("{refused:?}"), width.max(height).to_string());
            ensure!(text.contains(&number) && text.contains("65535"), "no number in {text}");
        }
        tasks.resize(id, "e", 65_535, 65_535).await?;
        let unknown = tasks.resize(id, "x", 65_536, 24).await.err().and_then(|error| error.code());
        ensure_eq!(unknown, Some(Code::NOT_FOUND), "of an unknown exec");
        container.retire().await
    })
}

#[test]
fn last_words_on_a_terminal_are_not_lost() -> Result {
    const ROUNDS: usize = 10;
    const LINES: usize = 20_000;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        for round in 0..ROUNDS {
            let name = format!("e{round}");
            let stdio = Stdio::terminal(&fixture.file("fifo"), &name)?;
            let out = collect(&stdio.stdout)?;
            let script = format!("yes line | head -n {LINES}; echo last");
            container.exec_with(&name, &["sh", "-c", &script], &stdio).await?;
            tasks.wait(id, &name).await?;
            tasks.delete(id, &name).await?;
            let text = out.text().await?;
            ensure_eq!(text.lines().count(), LINES + 1, "lines in round {round}");
            ensure!(
                text.ends_with("last\r\n"),
                "{:?}",
                text.chars().rev().take(9).collect::<String>()
            );
        }
        container.retire().await
    })
}

#[test]
fn terminals_work_again_after_the_last_task_of_a_shim_was_deleted() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let first = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        let tasks = &first.shim.tasks;
        tasks.wait(first.id(), "").await?;
        tasks.delete(first.id(), "").await?;
        let second = fixture.bundle("b", &Spec::shell("echo on a terminal").terminal())?;
        let stdio = Stdio::terminal(&fixture.file("fifo"), "b")?;
        let out = collect(&stdio.stdout)?;
        tasks.create(&second, &stdio).await?;
        tasks.start(&second.id, "").await?;
        tasks.wait(&second.id, "").await?;
        tasks.delete(&second.id, "").await?;
        ensure_eq!(out.text().await?, "on a terminal\r\n", "output");
        first.shim.shutdown(first.id()).await?;
        first.shim.gone().await
    })
}

#[test]
fn shim_ends_with_a_terminal_whose_client_stays() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let stdio = Stdio::terminal(&fixture.file("fifo"), "e")?;
        let out = collect(&stdio.stdout)?;
        container.exec_with("e", &["sh"], &stdio).await?;
        let mut input = Input::open(&stdio.stdin).await?;
        input.write(b"exit 3\n").await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        ensure_eq!(tasks.wait(id, "e").await?.exit_status, 3, "exit status");
        tasks.delete(id, "e").await?;
        container.retire().await?;
        drop((input, out));
        Ok(())
    })
}
