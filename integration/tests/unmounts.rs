//! The end of root filesystems: everything that is mounted there goes with the container, and nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use integration::container::Container;
use integration::failure::{Failure, Result};
use integration::hung_fs::HungFs;
use integration::rootfs::mounted;
use integration::scenario::{scenario, skip};
use integration::shim::Launch;
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::Status;
use integration::{deadline, ensure, ensure_eq, paths};
use nix::mount::{MsFlags, mount};
use ttrpc::Code;

/// A process of the host that has its working directory somewhere, until it falls.
struct Sitter(std::process::Child);

impl Sitter {
    fn sit(dir: &Path) -> Result<Self> {
        Ok(Self(Command::new("sleep").arg("1000").current_dir(dir).spawn()?))
    }
}

impl Drop for Sitter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn delete_of_a_busy_root_filesystem_fails_removes_nothing_and_can_be_repeated() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims do not know the words of crun");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        for (name, runtime) in integration::hybrid::both_runtimes()? {
            let sentinel = fixture.rootfs()?.join("root").join(format!("sentinel-{name}"));
            fs::write(&sentinel, "precious")?;
            let (spec, none) = (Spec::new(&["true"]), Stdio::null());
            let container =
                Container::run_with(fixture, name, &spec, &none, Some(&runtime)).await?;
            let (id, tasks) = (container.id(), &container.shim.tasks);
            tasks.wait(id, "").await?;
            let rootfs = container.bundle.dir.join("rootfs");
            let sitter = Sitter::sit(&rootfs.join("root"))?;
            for round in 0..2 {
                let error = tasks.delete(id, "").await.err();
                let error =
                    error.ok_or_else(|| Failure::new(format!("deleted in round {round}")))?;
                ensure!(error.to_string().contains("rootfs"), "{error}");
                ensure_eq!(mounted(&rootfs)?.len(), 1, "mounts, {name}");
                ensure_eq!(fs::read_to_string(&sentinel)?, "precious", "sentinel, {name}");
                let status = tasks.status(id, "").await?.enum_value_or_default();
                ensure_eq!(status, Status::STOPPED, "status, {name}");
            }
            // The shim of a container that is not deleted stays.
            container.shim.shutdown(id).await?;
            tasks.connect_task(id).await?;
            drop(sitter);
            tasks.delete(id, "").await?;
            ensure!(mounted(&container.bundle.dir)?.is_empty(), "mounts stay, {name}");
            ensure_eq!(fs::read_to_string(&sentinel)?, "precious", "sentinel, {name}");
            container.shim.shutdown(id).await?;
            container.shim.gone().await?;
            let right = ["create", "start", "exit", "delete"];
            ensure_eq!(sink.words(id)?, right, "events, {name}");
        }
        Ok(())
    })
}

#[test]
fn root_filesystem_that_is_busy_for_a_moment_is_waited_for() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        shim.tasks.create(&bundle, &Stdio::null()).await?;
        shim.tasks.start(&bundle.id, "").await?;
        shim.tasks.wait(&bundle.id, "").await?;
        let sitter = Sitter::sit(&bundle.dir.join("rootfs"))?;
        let leaving = tokio::spawn(async move {
            // As long as a scanner of files takes for one of them.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            drop(sitter);
        });
        shim.tasks.delete(&bundle.id, "").await?;
        leaving.await?;
        ensure!(mounted(&bundle.dir)?.is_empty(), "mounts stay");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn link_in_place_of_the_root_filesystem_is_not_followed_by_delete() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim of 1.6 follows it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        shim.tasks.create(&bundle, &Stdio::null()).await?;
        shim.tasks.start(&bundle.id, "").await?;
        shim.tasks.wait(&bundle.id, "").await?;
        let (rootfs, aside) = (bundle.dir.join("rootfs"), fixture.file("aside"));
        fs::create_dir(&aside)?;
        let run = |program: &str, arguments: &[&Path]| -> Result {
            let status = Command::new(program).args(arguments).status()?;
            ensure!(status.success(), "{program}: {status}");
            Ok(())
        };
        run("umount", &[&rootfs])?;
        run("mount", &[Path::new("-t"), Path::new("tmpfs"), Path::new("none"), &aside])?;
        fs::remove_dir(&rootfs)?;
        symlink(&aside, &rootfs)?;
        let deleted = shim.tasks.delete(&bundle.id, "").await;
        let kept = mounted(&aside)?.len();
        run("umount", &[&aside])?;
        ensure_eq!(kept, 1, "somebody else's mount, after {deleted:?}");
        let code = shim.tasks.state(&bundle.id, "").await.err().and_then(|error| error.code());
        ensure_eq!(code, Some(Code::NOT_FOUND), "after delete");
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

/// Mounts a filesystem on a directory of the root filesystem, with another mount in it, and stops answering for it.
fn hang_on(dir: &Path) -> Result<HungFs> {
    let hung = HungFs::mount(dir)?;
    let none = None::<&str>;
    mount(Some("none"), &dir.join("sub"), Some("tmpfs"), MsFlags::empty(), none)?;
    hung.hang();
    Ok(hung)
}

#[test]
fn filesystem_that_hangs_holds_up_neither_delete() -> Result {
    /// What the manager gives to the command.
    const COMMAND: Duration = Duration::from_secs(5);
    if paths::is_go_shim() {
        return skip("Go's shims hang with it");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("dead", &Spec::new(&["true"]))?;
        let rootfs = bundle.dir.join("rootfs");
        let hung = hang_on(&rootfs)?;
        let begun = Instant::now();
        let ran = Launch::new(fixture, &bundle).run("delete").await?;
        let took = begun.elapsed();
        ensure!(ran.status.success() && !ran.stdout.is_empty(), "{}: {}", ran.status, ran.stderr);
        ensure!(took < COMMAND, "it took {took:?}");
        ensure!(mounted(&rootfs)?.is_empty(), "still mounted after {}", ran.stderr);
        drop(hung);

        let container = Container::run(fixture, "a", &Spec::new(&["true"])).await?;
        let (id, tasks) = (container.id(), &container.shim.tasks);
        tasks.wait(id, "").await?;
        let rootfs = container.bundle.dir.join("rootfs");
        let hung = hang_on(&rootfs.join("tmp"))?;
        tasks.delete(id, "").await?;
        ensure!(mounted(&rootfs)?.is_empty(), "still mounted after delete");
        drop(hung);
        container.shim.shutdown(id).await?;
        container.shim.gone().await
    })
}

#[test]
fn delete_command_leaves_a_busy_root_filesystem_where_it_is() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 1.7 unmount one layer");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let rootfs = bundle.dir.join("rootfs");
        mount(Some("none"), &rootfs, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        let sitter = Sitter::sit(&rootfs)?;
        let ran = Launch::new(fixture, &bundle).run("delete").await?;
        ensure!(ran.status.success(), "{}: {}", ran.status, ran.stderr);
        ensure!(ran.stderr.contains("rootfs"), "it says nothing of it: {:?}", ran.stderr);
        ensure_eq!(mounted(&rootfs)?.len(), 1, "mounts");
        drop(sitter);
        Launch::new(fixture, &bundle).run("delete").await?;
        ensure!(mounted(&rootfs)?.is_empty(), "mounts stay");
        Ok(())
    })
}

/// Catches SIGTERM from here on.
fn catches_term(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
    caught
        .and_then(|mask| u64::from_str_radix(mask, 16).ok())
        .is_some_and(|mask| mask & 1 << 14 != 0)
}

#[test]
fn signals_do_not_keep_the_delete_command_from_unmounting() -> Result {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    if paths::is_go_shim() {
        return skip("Go's shims before 1.7 unmount one layer");
    }
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let rootfs = bundle.dir.join("rootfs");
        mount(Some("none"), &rootfs, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        let sitter = Sitter::sit(&rootfs)?;
        let mut command = Launch::new(fixture, &bundle).command("delete")?;
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let child = command.spawn()?;
        let pid = child.id().unwrap_or_default();
        deadline::until("delete to catch signals", deadline::HANG, || catches_term(pid)).await?;
        // All the way through the runtime's call, and into the wait for the mount.
        for _ in 0..50 {
            kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(sitter);
        let output = tokio::time::timeout(deadline::HANG, child.wait_with_output()).await??;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{}: {said}", output.status);
        ensure!(mounted(&rootfs)?.is_empty(), "it stays mounted: {said}");
        Ok(())
    })
}
