//! `doctor --fix` beside containerds of each series that are at work, with their own shims: it finds nothing, and nothing
//! that lives notices it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use integration::containerd::Containerd;
use integration::ctr::Ctr;
use integration::daemon::tool_json;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::{ensure, ensure_eq, image, paths};
use serde_json::Value;
use tokio::task::JoinSet;

/// Containers that live all the time.
const LIVE: usize = 3;

/// Times that doctor looks and fixes while containerd works.
const VISITS: usize = 12;

/// Work of clients, until it is enough.
struct Work {
    enough: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    clients: JoinSet<Result>,
}

impl Work {
    fn new() -> Self {
        let (enough, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        Self { enough, done, clients: JoinSet::new() }
    }

    /// A client that runs the same commands again and again, each of which has to succeed.
    fn begin(&mut self, ctr: &Ctr, commands: Vec<Vec<String>>) {
        let (ctr, enough, done) = (ctr.clone(), self.enough.clone(), self.done.clone());
        self.clients.spawn(async move {
            while !enough.load(Ordering::Relaxed) {
                for command in &commands {
                    let words: Vec<&str> = command.iter().map(String::as_str).collect();
                    ctr.must(&words).await?;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }

    /// Has it end; gives how many rounds there were.
    async fn end(mut self) -> Result<usize> {
        self.enough.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client??;
        }
        Ok(self.done.load(Ordering::Relaxed))
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// What doctor finds of this test, when it looks and fixes.
async fn visit(
    fixture: &Fixture,
    containerd: &Containerd<'_>,
    more: &[&str],
) -> Result<Vec<Value>> {
    let (socket, bundles) = (text(&containerd.address()), containerd.bundles());
    let state = text(bundles.parent().unwrap_or(&bundles));
    let usual = ["doctor", "--json", "--containerd", &socket, "--state", &state];
    let found = tool_json(fixture, &[&usual[..], more].concat()).await?;
    let found = found.as_array().cloned().ok_or_else(|| Failure::new("no list of findings"))?;
    // The places of sockets are shared with other tests, whose remains are not of this one.
    Ok(found.into_iter().filter(|one| one.to_string().contains(fixture.namespace())).collect())
}

fn beside(series: &str) -> Result {
    if paths::containerd(series).is_none() {
        return skip(&format!("no containerd {series} in this machine's mirror"));
    }
    scenario(async |fixture| {
        let containerd = Containerd::start(fixture, series).await?;
        containerd.import_image().await?;
        let ctr = Ctr::new(fixture, containerd.bin(), &containerd.address());
        let mut live = Vec::new();
        for n in 0..LIVE {
            let id = containerd.id(&format!("live{n}"));
            let run = ["run", "--detach", "--null-io", image::NAME, &id, "sleep", "1000"];
            ctr.must(&run).await?;
            let pid = ctr.status_of(&id).await?.map(|task| task.0).unwrap_or_default();
            live.push((id, pid));
        }

        // While containers come and go, only what is older than a minute is judged.
        let mut work = calls_into(&ctr, &live);
        for n in 0..LIVE {
            let id = containerd.id(&format!("brief{n}"));
            work.begin(&ctr, vec![words(&["run", "--rm", "--null-io", image::NAME, &id, "true"])]);
        }
        let sockets = text(&fixture.file("s"));
        for _ in 0..VISITS {
            let found = visit(fixture, &containerd, &["--fix", "--sockets", &sockets]).await?;
            ensure_eq!(found, Vec::<Value>::new(), "findings while containers come and go");
        }
        ensure!(work.end().await? > 0, "nothing was done meanwhile");

        // While none are made, everything is, at any age.
        let work = calls_into(&ctr, &live);
        for n in 0..VISITS {
            let fix = ["--everything", "--fix", "--sockets", &sockets];
            let look = ["--everything"];
            let more = if n % 2 == 0 { &fix[..] } else { &look[..] };
            let found = visit(fixture, &containerd, more).await?;
            ensure_eq!(found, Vec::<Value>::new(), "findings at any age");
        }
        ensure!(work.end().await? > 0, "nothing was done meanwhile");

        for (id, pid) in &live {
            ensure!(is_alive(*pid), "{id} was ended");
            ensure_eq!(ctr.status_of(id).await?, Some((*pid, "RUNNING".to_owned())), "{id}");
            // ctr tells the status of the killed task by failing.
            ctr.output(&["tasks", "rm", "--force", id]).await?;
            ctr.must(&["containers", "rm", id]).await?;
        }
        containerd.stop().await
    })
}

/// Clients that call upon each live container.
fn calls_into(ctr: &Ctr, live: &[(String, u32)]) -> Work {
    let mut work = Work::new();
    for (id, _) in live {
        let exec = words(&["tasks", "exec", "--exec-id", "e", id, "true"]);
        let pause = words(&["tasks", "pause", id]);
        let resume = words(&["tasks", "resume", id]);
        work.begin(ctr, vec![exec, pause, resume]);
    }
    work
}

#[test]
fn beside_a_busy_containerd_1_6_nothing_alive_is_touched() -> Result {
    beside("1.6")
}

#[test]
fn beside_a_busy_containerd_1_7_nothing_alive_is_touched() -> Result {
    beside("1.7")
}

#[test]
fn beside_a_busy_containerd_2_nothing_alive_is_touched() -> Result {
    beside("2")
}
