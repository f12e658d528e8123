//! The reaper, in a process of its own: it collects every child there is.

use std::process::Command;

use nix::unistd::Pid;
use shim_runc::{reaper::Reaper, sys::process::become_subreaper};

/// One test: two reapers in one process would take each other's children.
#[test]
fn exits_are_delivered_kept_for_claims_and_otherwise_forgotten() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let reaper = Reaper::new();
        let loop_ = tokio::spawn(reaper.listen().unwrap());

        let shell = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            reaper.spawn(&mut command).unwrap()
        };
        assert_eq!(shell("exit 7").ended().await.status, 7);
        assert_eq!(shell("kill -9 $$").ended().await.status, 128 + 9);
        // A real-time signal has no name, and an exit all the same.
        assert_eq!(shell("kill -37 $$").ended().await.status, 128 + 37);

        // A process that is not ours yet when it ends, as a container's init.
        become_subreaper().unwrap();
        let claim = reaper.claim();
        let pid_of_orphan = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).stdout(std::process::Stdio::piped());
            let mut child = reaper.spawn(&mut command).unwrap();
            let mut text = String::new();
            std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut text).unwrap();
            (child, Pid::from_raw(text.trim().parse().unwrap()))
        };
        // It outlives its shell, which might collect it else.
        let until_ours = "while kill -0 $0; do sleep 0.01; done 2>/dev/null; exit 5";
        let (child, pid) = pid_of_orphan(&format!("sh -c '{until_ours}' $$ >/dev/null & echo $!"));
        assert!(child.ended().await.success());
        let adopted = tokio::time::timeout(std::time::Duration::from_secs(10), async {
            loop {
                if let Some(adopted) = claim.adopt(pid) {
                    break adopted;
                }
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(adopted.await.unwrap().exit.wait().await.status, 5);

        // One that is still alive when it is adopted.
        let (child, pid) = pid_of_orphan("sleep 100 >/dev/null & echo $!");
        assert!(child.ended().await.success());
        let adopted = claim.adopt(pid).unwrap();
        adopted.handle.unwrap().send(15).unwrap();
        assert_eq!(adopted.exit.wait().await.status, 128 + 15);

        // Nobody's child is nobody's to adopt; and without claims nothing is kept.
        assert!(claim.adopt(Pid::from_raw(1)).is_none());
        loop_.abort();
    });
}
