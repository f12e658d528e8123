//! A node that has no process and no thread left to give.

use std::path::PathBuf;

use integration::cgroup::Cgroups;
use integration::container::Container;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::leak::Usage;
use integration::scenario::{scenario, skip};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Answer, Status};
use integration::{deadline, ensure, ensure_eq, paths};

const SLEEP: [&str; 2] = ["sleep", "1000"];

/// A cgroup that limits how many processes and threads there are.
struct Narrow(PathBuf);

impl Narrow {
    /// With this process in it.
    fn around(fixture: &Fixture, pid: u32) -> Result<Self> {
        let own = Cgroups::of(std::process::id())?;
        let top = own.dir("pids")?;
        let dir = top.join(fixture.id("narrow"));
        std::fs::create_dir(&dir)?;
        let narrow = Self(dir);
        std::fs::write(narrow.0.join("cgroup.procs"), pid.to_string())?;
        Ok(narrow)
    }

    fn limit(&self, most: &str) -> Result {
        Ok(std::fs::write(self.0.join("pids.max"), most)?)
    }

    /// Removes it, once those in it have been waited for.
    async fn end(self) -> Result {
        let removed = || std::fs::remove_dir(&self.0).is_ok();
        deadline::until("the removal of the narrow cgroup", deadline::HANG, removed).await
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn is_refused<T>(answer: Answer<T>) -> bool {
    answer.is_err_and(|error| error.to_string().contains("temporarily unavailable"))
}

#[test]
fn shim_that_gets_no_process_and_no_thread_fails_that_call_and_lives_on() -> Result {
    if paths::is_go_shim() {
        return skip("Go ends a program that gets no thread");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let spec = Spec::new(&SLEEP).annotation("io.containerd.runc.v2.group", &fixture.id("g"));
        let container = Container::run(fixture, "a", &spec).await?;
        let (id, tasks, pid) = (container.id(), &container.shim.tasks, container.shim.pid);
        if Cgroups::of(pid)?.dir("pids").is_err() {
            skip("no pids controller")?;
            return container.retire().await;
        }
        let other = fixture.bundle("b", &spec)?;
        let narrow = Narrow::around(fixture, pid)?;
        let alone = || Usage::of(pid).is_ok_and(|usage| usage.threads == 1);
        deadline::until("the end of idle threads", deadline::HANG, alone).await?;
        narrow.limit("1")?;
        for _ in 0..3 {
            ensure!(is_refused(tasks.stats(id).await), "stats");
            ensure!(is_refused(tasks.create(&other, &Stdio::null()).await), "create");
            ensure!(is_refused(tasks.pids(id).await), "pids");
            ensure!(is_refused(tasks.kill(id, "", 9).await), "kill");
            ensure_eq!(tasks.status(id, "").await?, Status::RUNNING.into(), "status");
        }
        ensure!(is_refused(container.exec("e", &["true"]).await), "exec");
        ensure_eq!(sink.words(&other.id)?, Vec::<String>::new(), "events of what was never made");
        narrow.limit("max")?;
        tasks.stats(id).await?;
        tasks.create(&other, &Stdio::null()).await?;
        tasks.kill(id, "", 9).await?;
        tasks.wait(id, "").await?;
        deadline::until("the end of idle threads", deadline::HANG, alone).await?;
        narrow.limit("1")?;
        ensure!(tasks.delete(id, "").await.is_err(), "delete without a process");
        ensure_eq!(
            tasks.status(id, "").await?,
            Status::STOPPED.into(),
            "after a delete that failed"
        );
        narrow.limit("max")?;
        tasks.delete(id, "").await?;
        container.shim.retire(&other.id).await?;
        container.shim.gone().await?;
        narrow.end().await
    })
}
