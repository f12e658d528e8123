//! Events: none is lost, none overtakes another, whatever their receiver does.

use std::collections::HashSet;
use std::time::Duration;

use integration::container::Container;
use integration::event::Event;
use integration::failure::{Context, Result};
use integration::fakectrd::Manner;
use integration::scenario::{scenario, skip};
use integration::spec::{Spec, process};
use integration::stdio::Stdio;
use integration::{ensure, ensure_eq, paths};
use tokio::task::JoinSet;

const SLEEP: [&str; 2] = ["sleep", "1000"];

/// One after another, without those that came twice: a call without answer is made again.
fn once(words: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for word in words {
        if !seen.contains(word) {
            seen.push(word.clone());
        }
    }
    seen
}

#[test]
fn envelopes_carry_namespace_topic_and_type() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        container.retire().await?;
        let events = sink.wait_for_word(container.id(), "delete").await?;
        ensure_eq!(sink.words(container.id())?, ["create", "start", "exit", "delete"], "order");
        for received in sink.received() {
            ensure_eq!(received.namespace, fixture.namespace(), "namespace of {received:?}");
        }
        let Some(Event::Create { bundle, .. }) = events.first() else {
            return Err(integration::failure::Failure::new(format!("{events:?}")));
        };
        ensure_eq!(*bundle, container.bundle.path(), "bundle");
        Ok(())
    })
}

#[test]
fn calls_do_not_outrun_a_receiver_that_is_slow() -> Result {
    // Together more than are kept while containerd is away; a reservation makes one event and takes next to no time.
    const LANES: usize = 16;
    const EACH: usize = 300;
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        sink.behave(Manner::Slow(Duration::from_millis(1)));
        let mut lanes = JoinSet::new();
        for lane in 0..LANES {
            let (tasks, id) = (container.shim.tasks.clone(), container.id().to_owned());
            lanes.spawn(async move {
                for number in 0..EACH {
                    let (exec, process) = (format!("e{lane}-{number}"), process(&["true"]));
                    tasks.exec(&id, &exec, &process, &Stdio::null()).await?;
                }
                Result::Ok(())
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane??;
        }
        sink.behave(Manner::Prompt);
        let added = |events: &[Event]| {
            let ids = events.iter().filter_map(|event| match event {
                Event::ExecAdded { exec, .. } => Some(exec.as_str()),
                _ => None,
            });
            ids.collect::<HashSet<_>>().len()
        };
        let all = LANES * EACH;
        sink.wait_for(container.id(), "all reservations", |events| added(events) == all).await?;
        container.shim.tasks.kill(container.id(), "", 9).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        container.retire().await
    })
}

#[test]
fn last_events_are_delivered_before_the_shim_ends_and_every_caller_is_answered() -> Result {
    const ROUNDS: usize = 20;
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for round in 0..ROUNDS {
            let container =
                Container::run(fixture, &format!("r{round}"), &Spec::new(&["true"])).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            tasks.wait(id, "").await?;
            tasks.delete(id, "").await?;
            let answer = tasks.shutdown(id).await;
            if !paths::is_go_shim() {
                answer?;
            }
            container.shim.gone().await?;
            let words = sink.words(id)?;
            ensure_eq!(words, ["create", "start", "exit", "delete"], "events of round {round}");
        }
        Ok(())
    })
}

#[test]
fn events_wait_for_a_receiver_that_comes_back() -> Result {
    scenario(async |fixture| {
        let mut sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        sink.wait_for_word(id, "start").await?;
        sink.close();
        container.exec("e", &["true"]).await?;
        tasks.wait(id, "e").await?;
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        // Longer than a few quick retries would bridge.
        tokio::time::sleep(Duration::from_secs(8)).await;
        sink.open()?;
        let events = sink.wait_for_word(id, "exit").await?;
        let words = once(&events.iter().map(Event::word).collect::<Vec<_>>());
        let right = ["create", "start", "exec-added e", "exec-started e", "exit e", "exit"];
        if paths::is_go_shim() {
            ensure!(words.contains(&"exit".to_owned()), "{words:?}");
        } else {
            ensure_eq!(words, right, "events");
        }
        container.retire().await
    })
}

#[test]
fn silent_receiver_costs_neither_events_nor_calls() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        sink.wait_for_word(id, "start").await?;
        sink.behave(Manner::Silent);
        container.exec("e", &["true"]).await?;
        tasks.wait(id, "e").await?;
        tasks.state(id, "").await?;
        // Past the five seconds that a call to containerd may take.
        tokio::time::sleep(Duration::from_secs(6)).await;
        sink.behave(Manner::Prompt);
        sink.wait_for_word(id, "exit e").await?;
        container.retire().await?;
        let words = once(&sink.words(id)?);
        if !paths::is_go_shim() {
            let right =
                ["create", "start", "exec-added e", "exec-started e", "exit e", "exit", "delete"];
            ensure_eq!(words, right, "events");
        }
        Ok(())
    })
}

#[test]
fn hundreds_of_ends_survive_a_receiver_that_does_not_read() -> Result {
    const EXECS: usize = 150;
    const AT_ONCE: usize = 10;
    if paths::is_go_shim() {
        return skip("Go's shim stops answering when its event queue is full");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&SLEEP)).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        sink.wait_for_word(id, "start").await?;
        sink.behave(Manner::Deaf);
        for round in 0..EXECS / AT_ONCE {
            let mut runs = tokio::task::JoinSet::new();
            for number in 0..AT_ONCE {
                let (tasks, id) = (tasks.clone(), id.to_owned());
                let name = format!("e{round}x{number}");
                runs.spawn(async move {
                    let process = integration::spec::process(&["true"]);
                    tasks.exec(&id, &name, &process, &Stdio::null()).await?;
                    tasks.start(&id, &name).await?;
                    tasks.wait(&id, &name).await
                });
            }
            while let Some(run) = runs.join_next().await {
                run??;
            }
        }
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        sink.behave(Manner::Prompt);
        sink.wait_for_word(id, "exit").await?;
        let words = once(&sink.words(id)?);
        let ends = words.iter().filter(|word| word.starts_with("exit ")).count();
        ensure_eq!(ends, EXECS, "ends of execs");
        ensure_eq!(
            words.iter().position(|word| word == "exit"),
            Some(words.len() - 1),
            "init's end"
        );
        for word in &words {
            if let Some(exec) = word.strip_prefix("exec-started ") {
                let at = |word: String| words.iter().position(|one| *one == word);
                let (started, ended) = (at(word.clone()), at(format!("exit {exec}")));
                ensure!(started < ended, "{exec} in {words:?}");
            }
        }
        container.retire().await
    })
}

#[test]
fn refused_events_do_not_stop_the_shim() -> Result {
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        sink.behave(Manner::Refusing);
        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        sink.behave(Manner::Prompt);
        container.retire().await
    })
}

#[test]
fn shim_without_receiver_serves_and_ends() -> Result {
    scenario(async |fixture| {
        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        container.shim.tasks.wait(container.id(), "").await?;
        container.retire().await
    })
}

#[test]
fn who_hears_of_a_container_finds_it() -> Result {
    const ROUNDS: usize = 10;
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let spec = Spec::new(&SLEEP).annotation("io.containerd.runc.v2.group", &fixture.id("g"));
        let first = Container::run(fixture, "first", &spec).await?;
        for round in 0..ROUNDS {
            let bundle = fixture.bundle(&format!("r{round}"), &spec)?;
            let (tasks, id) = (&first.shim.tasks, bundle.id.as_str());
            let heard = async {
                // As soon as it can be heard.
                while sink.events(id)?.is_empty() {
                    tokio::task::yield_now().await;
                }
                tasks.state(id, "").await.context("the state of a container that was told of")
            };
            let none = Stdio::null();
            let (created, heard) = tokio::join!(tasks.create(&bundle, &none), heard);
            created?;
            heard?;
            first.shim.retire(id).await?;
        }
        first.retire().await
    })
}
