//! Loads after an end that was none of the good ones: shims have died, the manager was killed, containerd is not up yet.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use integration::attach::{Attach, Glue, Surroundings, code_of, own_request};
use integration::containerd::Containerd;
use integration::daemon::Events;
use integration::deadline::{self, HANG};
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::spec::Spec;
use integration::{ensure, ensure_eq, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime_proto::manager::CreateRequest;
use ttrpc::Code;

/// The containerd whose subscribers wait for events.
const SERIES: &str = "2";

fn sleeper(fixture: &Fixture, name: &str) -> Result<CreateRequest> {
    own_request(fixture, name, Spec::new(&["sleep", "1000"]))
}

/// A manager whose containerd has yet to come up, containers of it, and that containerd under another name.
struct Early<'a> {
    containerd: Containerd<'a>,
    events: Events,
    surroundings: Surroundings,
    /// Where the manager looks for containerd.
    socket: PathBuf,
    requests: Vec<CreateRequest>,
    shims: Vec<Pid>,
}

impl<'a> Early<'a> {
    async fn start(fixture: &'a Fixture, names: &[&str]) -> Result<(Self, Attach<'a>)> {
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let containerd = Containerd::start(fixture, SERIES).await?;
        let events = Events::of(fixture, containerd.client()).await?;
        let socket = fixture.address();
        let surroundings = Surroundings::at(fixture.dir(), &socket);
        fixture.expect_empty(&surroundings.bundles(fixture.namespace()));
        let attach = Attach::start(fixture).await?;
        let glue = attach.glue().await?;
        glue.load(&surroundings).await?;
        let (mut requests, mut shims) = (Vec::new(), Vec::new());
        for name in names {
            let request = sleeper(fixture, name)?;
            glue.run(&request).await?;
            let shim = glue.tasks.connect_task(&request.id).await?.shim_pid;
            shims.push(Pid::from_raw(shim.try_into()?));
            requests.push(request);
        }
        Ok((Self { containerd, events, surroundings, socket, requests, shims }, attach))
    }

    fn kill_shims(&self) -> Result {
        for shim in &self.shims {
            kill(*shim, Signal::SIGKILL)?;
        }
        Ok(())
    }

    async fn shims_end(&self) -> Result {
        let alive = |pid: &Pid| is_alive(u32::try_from(pid.as_raw()).unwrap_or_default());
        deadline::until("the shims' ends", HANG, || !self.shims.iter().any(alive)).await
    }

    /// containerd's sockets come up.
    fn come_up(&self) -> Result {
        symlink(self.containerd.address(), &self.socket)?;
        let ttrpc = |path: &PathBuf| format!("{}.ttrpc", path.display());
        Ok(symlink(ttrpc(&self.containerd.address()), ttrpc(&self.socket))?)
    }

    fn bundles_left(&self, fixture: &Fixture) -> usize {
        let dir = self.surroundings.bundles(fixture.namespace());
        self.requests.iter().filter(|request| dir.join(&request.id).exists()).count()
    }

    /// One exit and one deletion of each, in this order.
    async fn each_end_is_told_once(&self) -> Result {
        for request in &self.requests {
            self.events.until_deleted(&request.id).await?;
        }
        for request in &self.requests {
            let mut told = self.events.topics_of(&request.id);
            // What their shims had to tell had no one to be told to.
            told.retain(|topic| topic != "/tasks/create" && topic != "/tasks/start");
            ensure_eq!(told, ["/tasks/exit", "/tasks/delete"], "the end of {}", request.id);
        }
        Ok(())
    }
}

fn with_containerd<F>(names: &[&str], test: F) -> Result
where
    F: AsyncFnOnce(&Fixture, Early<'_>, Attach<'_>) -> Result,
{
    if paths::containerd(SERIES).is_none() {
        return skip("no containerd 2 in this machine's mirror");
    }
    scenario(async |fixture| {
        let (early, attach) = Early::start(fixture, names).await?;
        test(fixture, early, attach).await
    })
}

#[test]
fn ends_of_dead_shims_are_told_once_when_containerd_is_up() -> Result {
    with_containerd(&["a", "b", "c"], async |fixture, early, attach| {
        attach.stop().await?;
        early.kill_shims()?;
        early.shims_end().await?;
        let attach = Attach::start(fixture).await?;
        let glue = attach.glue().await?;
        // containerd does not serve before this is answered, nor before its plugins have asked this.
        let loaded = glue.load(&early.surroundings).await?;
        ensure_eq!((loaded.tasks, loaded.removed), (0, 3), "found and removed");
        for request in &early.requests {
            ensure_eq!(code_of(glue.get(&request.id).await)?, Code::NOT_FOUND, "a dead one");
        }
        ensure_eq!(glue.list().await?, Vec::<String>::new(), "tasks");
        early.come_up()?;
        early.each_end_is_told_once().await?;
        deadline::until("the bundles' ends", HANG, || early.bundles_left(fixture) == 0).await?;
        // Their ids are free.
        for request in &early.requests {
            when_free(&glue, request).await?;
            glue.remove(&request.id).await?;
        }
        attach.stop().await?;
        early.events.stop().await?;
        early.containerd.stop().await
    })
}

#[test]
fn what_one_manager_cannot_tell_the_next_one_tells() -> Result {
    with_containerd(&["a", "b", "c"], async |fixture, early, attach| {
        // Under a living manager this time.
        early.kill_shims()?;
        early.shims_end().await?;
        attach.stop().await?;
        // And under one that is killed while it waits.
        let attach = Attach::start(fixture).await?;
        let loaded = attach.glue().await?.load(&early.surroundings).await?;
        ensure_eq!(loaded.removed, 3, "found dead");
        attach.signal(Signal::SIGKILL).await?;
        ensure_eq!(early.bundles_left(fixture), 3, "bundles");
        let attach = Attach::start(fixture).await?;
        attach.glue().await?.load(&early.surroundings).await?;
        early.come_up()?;
        early.each_end_is_told_once().await?;
        deadline::until("the bundles' ends", HANG, || early.bundles_left(fixture) == 0).await?;
        attach.stop().await?;
        early.events.stop().await?;
        early.containerd.stop().await
    })
}

/// Killed at any moment of a create or a deletion: afterwards the task is there, or nothing of it is and the id is free.
#[test]
fn a_manager_killed_at_any_moment_loses_nothing() -> Result {
    const ROUNDS: u32 = 16;
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (mut attach, mut glue) = Attach::alone(fixture).await?;
        let stays = sleeper(fixture, "stays")?;
        let pid = glue.run(&stays).await?.pid;
        for round in 0..ROUNDS {
            let request = sleeper(fixture, &format!("r{round}"))?;
            let deletes = round % 2 == 1;
            if deletes {
                glue.run(&request).await?;
                glue.tasks.kill(&request.id, "", 9).await?;
                glue.tasks.wait(&request.id, "").await?;
            }
            let (caller, asked) = (glue.clone(), request.clone());
            let call = tokio::spawn(async move {
                if deletes {
                    caller.delete(&asked.id).await.map(drop)
                } else {
                    caller.create(&asked).await.map(drop)
                }
            });
            // No moment is better than another; these are spread over what a call takes.
            tokio::time::sleep(Duration::from_millis(u64::from(round) * 5)).await;
            attach.signal(Signal::SIGKILL).await?;
            let _ = call.await;
            (attach, glue) = again(fixture).await?;
            ensure_eq!(glue.get(&stays.id).await?.pid, pid, "the other, round {round}");
            match glue.get(&request.id).await {
                // Its shim may have been in the middle of deleting it, and have come to the end of that.
                Ok(_) => match glue.remove(&request.id).await {
                    Err(error) if error.code() != Some(Code::NOT_FOUND) => return Err(error.into()),
                    _ => {}
                },
                Err(error) => {
                    ensure_eq!(error.code(), Some(Code::NOT_FOUND), "round {round}");
                    when_free(&glue, &request).await?;
                    glue.remove(&request.id).await?;
                }
            }
        }
        glue.remove(&stays.id).await?;
        attach.stop().await
    })
}

async fn again(fixture: &Fixture) -> Result<(Attach<'_>, Glue)> {
    let attach = Attach::start(fixture).await?;
    let glue = attach.glue().await?;
    glue.load(&Surroundings::at(fixture.dir(), &fixture.address())).await?;
    Ok((attach, glue))
}

/// Runs a task as soon as what was left of its id is removed, which goes on behind a load.
async fn when_free(glue: &Glue, request: &CreateRequest) -> Result {
    let tries = async {
        loop {
            match glue.run(request).await {
                Err(error) if error.code() == Some(Code::ALREADY_EXISTS) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => return other,
            }
        }
    };
    let ran = tokio::time::timeout(HANG, tries).await?;
    ensure!(ran.is_ok(), "{}: {:?}", request.id, ran.err());
    Ok(())
}

#[test]
fn a_container_that_ends_while_nobody_looks_keeps_its_status() -> Result {
    scenario(async |fixture| {
        let _events = fixture.fake_containerd()?;
        let (attach, glue) = Attach::alone(fixture).await?;
        let gate = fixture.rootfs()?.join("gate");
        let script = "until [ -e /gate ]; do sleep 0.01; done; exit 9";
        let request = own_request(fixture, "ends", Spec::shell(script))?;
        let pid = glue.run(&request).await?.pid;
        attach.stop().await?;
        std::fs::write(&gate, "")?;
        deadline::until("the container's end", HANG, || !is_alive(pid)).await?;
        let (attach, glue) = again(fixture).await?;
        let exit = glue.tasks.wait(&request.id, "").await?;
        ensure_eq!(exit.exit_status, 9, "waited for");
        let deleted = glue.delete(&request.id).await?;
        ensure_eq!((deleted.pid, deleted.exit_status), (pid, 9), "deleted");
        ensure!(deleted.exited_at.is_some(), "no time of its end");
        attach.stop().await
    })
}
