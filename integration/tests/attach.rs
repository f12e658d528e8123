//! A containerd build's plugin and the manager: a node goes from a stock containerd to the manager and back, with its
//! containers running.

use std::fs;
use std::path::PathBuf;

use integration::attach::{Attach, Glue, Surroundings, create_request};
use integration::containerd::Containerd;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::is_alive;
use integration::spec;
use integration::stdio::Stdio;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::sys::signal::Signal;

/// By which containers of one pod find their shim.
const GROUP: &str = "io.kubernetes.cri.sandbox-id";

/// Whose shim the stock containerd has started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Go,
    Ours,
}

/// A stock containerd with containers of its own, and what is known of them.
struct Node<'a> {
    fixture: &'a Fixture,
    containerd: Containerd<'a>,
    alone: String,
    pod: String,
    stopped: String,
    /// On record, and without a task yet; of the same pod.
    member: String,
    pids: Vec<u32>,
}

impl<'a> Node<'a> {
    async fn start(fixture: &'a Fixture, series: &str, whose: Whose) -> Result<Self> {
        if whose == Whose::Ours {
            fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        }
        let containerd = Containerd::start(fixture, series).await?;
        let [alone, pod, stopped, member] =
            ["alone", "pod", "stopped", "member"].map(|name| containerd.id(name));
        let rootfs = fixture.rootfs()?.display().to_string();
        let group = format!("{GROUP}={pod}");
        let run = ["run", "--detach", "--null-io", "--env", "PATH=/bin", "--rootfs"];
        let sleep = ["sleep", "1000"];
        containerd.must(&[&run[..], &[&rootfs, &alone], &sleep].concat()).await?;
        let grouped = [&run[..], &["--annotation", &group, &rootfs, &pod], &sleep].concat();
        containerd.must(&grouped).await?;
        let ends = ["sh", "-c", "exit 7"];
        containerd.must(&[&run[..], &[&rootfs, &stopped], &ends].concat()).await?;
        let create =
            ["containers", "create", "--env", "PATH=/bin", "--rootfs", "--annotation", &group];
        containerd.must(&[&create[..], &[&rootfs, &member], &sleep].concat()).await?;
        let mut node = Self { fixture, containerd, alone, pod, stopped, member, pids: Vec::new() };
        for id in [node.alone.clone(), node.pod.clone()] {
            node.pids.push(node.status(&id).await?.0);
        }
        node.until_stopped().await?;
        Ok(node)
    }

    async fn status(&self, id: &str) -> Result<(u32, String)> {
        let list = self.containerd.must(&["tasks", "ls"]).await?;
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
        let fields: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
        match fields[..] {
            [_, pid, status] => Ok((pid.parse()?, status.to_owned())),
            _ => Err(Failure::new(format!("{id} is not in {list}"))),
        }
    }

    async fn until_stopped(&self) -> Result {
        let looks = async {
            while self.status(&self.stopped).await?.1 != "STOPPED" {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Ok(())
        };
        let limited = tokio::time::timeout(deadline::HANG, looks).await;
        limited.map_err(|_| Failure::new("a task does not stop"))?
    }

    /// Ends containerd and has a manager take its place.
    async fn hand_over(&mut self) -> Result<(Attach<'a>, Glue)> {
        let surroundings = Surroundings::of(self.fixture, &self.containerd).await?;
        self.containerd.end(Signal::SIGTERM).await?;
        let attach = Attach::start(self.fixture).await?;
        let glue = attach.glue().await?;
        let loaded = glue.load(&surroundings).await?;
        ensure_eq!((loaded.tasks, loaded.removed), (3, 0), "what is found and removed");
        Ok((attach, glue))
    }

    fn bundle_file(&self, id: &str, name: &str) -> String {
        fs::read_to_string(self.containerd.bundles().join(id).join(name)).unwrap_or_default()
    }
}

async fn exec(glue: &Glue, id: &str, exec: &str, argv: &[&str]) -> Result<u32> {
    glue.tasks.exec(id, exec, &spec::process(argv), &Stdio::null()).await?;
    glue.tasks.start(id, exec).await?;
    let waited = glue.tasks.wait(id, exec).await?;
    let deleted = glue.tasks.delete(id, exec).await?;
    ensure_eq!(deleted.exit_status, waited.exit_status, "exit of an exec");
    Ok(waited.exit_status)
}

/// From a stock containerd to the manager and back, with containers that run all the time.
fn there_and_back(series: &str, whose: Whose) -> Result {
    if paths::containerd(series).is_none() {
        return skip(&format!("no containerd {series} in this machine's mirror"));
    }
    scenario(async |fixture| {
        let mut node = Node::start(fixture, series, whose).await?;
        let request = create_request(&node.containerd, &node.member).await?;
        let (attach, glue) = node.hand_over().await?;
        // What was there is there.
        let mut ids = [&node.alone, &node.pod, &node.stopped].map(String::clone);
        ids.sort();
        ensure_eq!(glue.list().await?, ids.to_vec(), "tasks");
        for (id, pid) in [&node.alone, &node.pod].into_iter().zip(&node.pids) {
            let task = glue.get(id).await?;
            ensure_eq!(task.pid, *pid, "pid of {id}");
            let bundle = node.containerd.bundles().join(id).display().to_string();
            ensure_eq!(task.bundle, bundle, "bundle of {id}");
            ensure!(task.address.contains("+unix:///"), "address {}", task.address);
            ensure_eq!(exec(&glue, id, "e", &["sh", "-c", "exit 3"]).await?, 3, "exec in {id}");
        }
        // One that had ended keeps its status.
        let state = glue.tasks.state(&node.stopped, "").await?;
        ensure_eq!(state.exit_status, 7, "exit status over the change");
        ensure_eq!(glue.delete(&node.stopped).await?.exit_status, 7, "exit status");
        // A new container in a pod of the old manager.
        let member = glue.run(&request).await?;
        ensure_eq!(member.address, glue.get(&node.pod).await?.address, "shim of the pod");
        ensure_eq!(exec(&glue, &node.member, "e", &["true"]).await?, 0, "exec in the new one");
        ensure_eq!(glue.remove(&node.alone).await?.exit_status, 137, "exit of a killed one");
        // containerd 1 finds no shim that has been started for containerd 2, whoever did it.
        let mut running = vec![(node.pod.clone(), node.pids[1])];
        if series.starts_with('1') {
            glue.remove(&node.member).await?;
        } else {
            running.insert(0, (node.member.clone(), member.pid));
        }
        attach.stop().await?;
        ensure!(node.pids.iter().skip(1).all(|pid| is_alive(*pid)), "containers ended");
        // And back.
        node.containerd.start_again().await?;
        for (id, pid) in &running {
            ensure_eq!(node.status(id).await?, (*pid, "RUNNING".to_owned()), "{id} back in stock");
            node.containerd.must(&["tasks", "exec", "--exec-id", "back", id, "true"]).await?;
        }
        for (id, _) in &running {
            node.containerd.output(&["tasks", "rm", "--force", id]).await?;
        }
        for id in [&node.alone, &node.pod, &node.stopped, &node.member] {
            node.containerd.must(&["containers", "rm", id]).await?;
        }
        node.containerd.stop().await
    })
}

macro_rules! from_every_containerd_with_every_shim {
    ($($series:literal $whose:ident => $name:ident;)+) => {
        $(
            #[test]
            fn $name() -> Result {
                there_and_back($series, Whose::$whose)
            }
        )+
    };
}

from_every_containerd_with_every_shim! {
    "1.6" Go => containers_of_1_6_with_its_shim_go_there_and_back;
    "1.7" Go => containers_of_1_7_with_its_shim_go_there_and_back;
    "2" Go => containers_of_2_with_its_shim_go_there_and_back;
    "1.6" Ours => containers_of_1_6_with_our_shim_go_there_and_back;
    "1.7" Ours => containers_of_1_7_with_our_shim_go_there_and_back;
    "2" Ours => containers_of_2_with_our_shim_go_there_and_back;
}

/// A pod of 1.7 whose shim lives on, and a newer package: its `start` announces what the old process does not speak.
#[test]
fn the_older_api_of_a_pod_is_found_out_and_written_down() -> Result {
    let Some(newer) = paths::containerd("2").filter(|_| paths::containerd("1.7").is_some()) else {
        return skip("no containerd 1.7 and 2 in this machine's mirror");
    };
    scenario(async |fixture| {
        let mut node = Node::start(fixture, "1.7", Whose::Go).await?;
        let request = create_request(&node.containerd, &node.member).await?;
        let newer: PathBuf = newer.join("containerd-shim-runc-v2");
        fixture.offer("containerd-shim-runc-v2", &newer)?;
        let (attach, glue) = node.hand_over().await?;
        let member = glue.run(&request).await?;
        ensure_eq!(member.version, 2, "version spoken");
        let bootstrap = node.bundle_file(&node.member, "bootstrap.json");
        ensure!(bootstrap.contains("\"version\":2"), "written down: {bootstrap}");
        ensure_eq!(exec(&glue, &node.member, "e", &["true"]).await?, 0, "exec");
        for id in [&node.member, &node.pod, &node.alone, &node.stopped] {
            glue.remove(id).await?;
        }
        attach.stop().await
    })
}
