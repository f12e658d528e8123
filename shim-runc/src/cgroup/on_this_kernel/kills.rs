//! Kills for lack of memory.

use std::time::Duration;

use runtime_proto::errdefs::Code;

use super::*;

/// To detect a hang only; nothing here takes a second.
const LONG: Duration = Duration::from_secs(60);

/// Takes more than the limit, all at once.
const HOG: &str = "exec dd if=/dev/zero of=/dev/null bs=64M count=1";

async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, event).await.expect("within a minute")
}

#[tokio::test]
async fn a_kill_is_known_when_the_process_is_gone_and_told_once() {
    let Some(fresh) = Fresh::new("oom-poll") else { return };
    fresh.limit_memory();
    let watch = OomWatch::open(&fresh.cgroup).unwrap();
    for _ in 0..10 {
        assert!(!watch.poll_now(), "nothing happened yet");
        fresh.run(HOG).join();
        assert!(watch.poll_now(), "known before anything is awaited");
    }
    fresh.run("exit 0").join();
    assert!(!watch.poll_now(), "an ordinary exit is none");
}

#[tokio::test]
async fn a_kill_of_a_child_wakes_the_waiter() {
    let Some(fresh) = Fresh::new("oom-wait") else { return };
    fresh.limit_memory();
    let watch = OomWatch::open(&fresh.cgroup).unwrap();
    let _shell = fresh.run(&format!("sh -c '{HOG}'; exec sleep 1000"));
    assert_eq!(soon(watch.next()).await, Some(()));
    assert!(!watch.poll_now(), "told already");
    let again = fresh.run(HOG);
    assert_eq!(soon(watch.next()).await, Some(()));
    drop(again);
    let nothing = tokio::time::timeout(Duration::from_millis(100), watch.next()).await;
    assert!(nothing.is_err() && !watch.poll_now(), "both were told");
}

#[tokio::test]
async fn a_kill_in_a_cgroup_below_counts() {
    let Some(fresh) = Fresh::new("oom-below") else { return };
    fresh.limit_memory();
    let watch = OomWatch::open(&fresh.cgroup).unwrap();
    let below = fresh.cgroup.layout().controller("memory").unwrap().join("below");
    fs::create_dir(&below).unwrap();
    let enter = format!("echo $$ > '{}/cgroup.procs'", below.display());
    Shell::run(&format!("{enter}; {HOG}")).join();
    assert_eq!(soon(watch.next()).await, Some(()));
}

#[tokio::test]
async fn a_kill_of_a_neighbour_is_not_ours() {
    let Some(parent) = Fresh::new("oom-pod") else { return };
    parent.limit_memory();
    let pod = parent.cgroup.layout().controller("memory").unwrap().to_owned();
    if parent.cgroup.is_unified() {
        fs::write(pod.join("cgroup.subtree_control"), "+memory").unwrap();
    }
    let watch_below = |name: &str| {
        let dir = pod.join(name);
        fs::create_dir(&dir).unwrap();
        let layout = match parent.cgroup.layout() {
            Layout::Unified { top, .. } => Layout::Unified { top: top.clone(), dir: dir.clone() },
            Layout::V1(_) => Layout::v1(&["memory"], &dir),
        };
        (OomWatch::open(&Cgroup::from(layout)).unwrap(), dir)
    };
    let ((victim, dir), (neighbour, _)) = (watch_below("victim"), watch_below("neighbour"));
    Shell::run(&format!("echo $$ > '{}/cgroup.procs'; {HOG}", dir.display())).join();
    assert!(victim.poll_now(), "killed by the limit of the cgroup above");
    let told = tokio::time::timeout(Duration::from_millis(100), neighbour.next()).await;
    assert!(told.is_err() && !neighbour.poll_now(), "the neighbour lost nobody");
}

#[tokio::test]
async fn a_watch_leaves_no_descriptor_behind() {
    let Some(fresh) = Fresh::new("oom-fds") else { return };
    // The other tests in this process open some, too, but never that many.
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..200 {
        let watch = OomWatch::open(&fresh.cgroup).unwrap();
        let waiting = tokio::time::timeout(Duration::ZERO, watch.next()).await;
        assert!(waiting.is_err());
    }
    assert!(open() < before + 100, "{} descriptors before, {} after", before, open());
    let without = Cgroup::from(Layout::v1(&["pids"], Path::new("/")));
    assert_eq!(OomWatch::open(&without).unwrap_err().kind(), Code::NotFound);
}
