//! The search for leaks is what every other test stands on: it has to find one of every kind, and only its own.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use integration::ensure;
use integration::failure::{Failure, Result};
use integration::fixture::{Fixture, socket_paths};
use integration::leak::{Kind, MARKER, Scope, Snapshot, Usage, settle, sweep};
use integration::scenario::{scenario, scenario_settling};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// What is new since `before`, at once.
fn found(fixture: &Fixture, before: &Snapshot) -> Vec<(Kind, String)> {
    let items = Snapshot::take(&fixture.scope()).since(before);
    items.into_iter().map(|item| (item.kind, format!("{} {}", item.name, item.detail))).collect()
}

/// Plants one thing, expects it to be found, removes it, expects it to be gone.
fn plant<T>(
    kind: Kind,
    lay: impl FnOnce(&Fixture) -> Result<T>,
    lift: impl FnOnce(&Fixture, T) -> Result,
) -> Result {
    scenario(async |fixture| {
        let before = Snapshot::take(&fixture.scope());
        let planted = lay(fixture)?;
        let seen = found(fixture, &before);
        ensure!(seen.iter().any(|(one, _)| *one == kind), "no {kind:?} among {seen:?}");
        let other = Fixture::new()?;
        let strange = Snapshot::take(&other.scope());
        ensure!(strange.items().next().is_none(), "another fixture sees it: {strange:?}");
        fs::remove_dir_all(other.dir())?;
        lift(fixture, planted)?;
        let left = settle(&fixture.scope(), &before, Duration::from_secs(5));
        ensure!(left.is_empty(), "still there: {left:?}");
        Ok(())
    })
}

fn end(_: &Fixture, mut child: Child) -> Result {
    child.kill()?;
    child.wait()?;
    Ok(())
}

fn sleeper() -> Command {
    let mut command = Command::new("/bin/busybox");
    command.args(["sleep", "1000"]).stdin(Stdio::null());
    command
}

#[test]
fn process_is_found_by_its_environment() -> Result {
    let lay = |fixture: &Fixture| Ok(sleeper().env(MARKER, fixture.namespace()).spawn()?);
    plant(Kind::Process, lay, end)
}

#[test]
fn process_without_environment_is_found_by_its_arguments_or_directory() -> Result {
    let lay = |fixture: &Fixture| Ok(sleeper().env_clear().current_dir(fixture.dir()).spawn()?);
    plant(Kind::Process, lay, end)
}

#[test]
fn zombie_is_found_by_its_parent() -> Result {
    let lay = |fixture: &Fixture| {
        // exec: the shell's child becomes a child of a sleep that waits for nobody.
        let mut shell = Command::new("/bin/busybox");
        shell.args(["sh", "-c", "true & exec busybox sleep 1000"]).stdin(Stdio::null());
        Ok(shell.env(MARKER, fixture.namespace()).spawn()?)
    };
    let lift = |fixture: &Fixture, child: Child| {
        let settled = || {
            let items = Snapshot::take(&fixture.scope());
            items.items().any(|item| item.detail.contains("(zombie)")).then_some(())
        };
        let limit = Duration::from_secs(5);
        let seen = integration::deadline::until_some_blocking("the zombie", limit, settled);
        end(fixture, child)?;
        seen
    };
    plant(Kind::Process, lay, lift)
}

#[test]
fn socket_file_is_found_by_its_expected_name() -> Result {
    let lay = |fixture: &Fixture| {
        fixture.expect_socket(&fixture.address(), "some-id");
        let paths = socket_paths(&fixture.address(), fixture.namespace(), "some-id");
        let path = paths.first().cloned().ok_or_else(|| Failure::new("no path"))?;
        fs::create_dir_all("/run/containerd/s")?;
        drop(UnixListener::bind(&path)?);
        Ok(path)
    };
    plant(Kind::Socket, lay, |_, path| Ok(fs::remove_file(path)?))
}

#[test]
fn bound_socket_without_file_is_found() -> Result {
    let lay = |fixture: &Fixture| {
        let path = fixture.file("gone.sock");
        let listener = UnixListener::bind(&path)?;
        fs::remove_file(path)?;
        Ok(listener)
    };
    plant(Kind::Socket, lay, |_, listener| {
        drop(listener);
        Ok(())
    })
}

#[test]
fn mount_is_found() -> Result {
    let lay = |fixture: &Fixture| {
        let point = fixture.file("point");
        fs::create_dir(&point)?;
        mount(Some("none"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        Ok(point)
    };
    plant(Kind::Mount, lay, |_, point| Ok(umount(&point)?))
}

#[test]
fn cgroup_is_found_in_v1_and_v2() -> Result {
    for parent in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
        if !std::path::Path::new(parent).join("cgroup.procs").exists() {
            continue;
        }
        let lay = |fixture: &Fixture| {
            let dir = std::path::Path::new(parent).join(fixture.id("a"));
            fs::create_dir(&dir)?;
            Ok(dir)
        };
        plant(Kind::Cgroup, lay, |_, dir| Ok(fs::remove_dir(dir)?))?;
    }
    Ok(())
}

#[test]
fn file_in_the_temporary_directory_is_found() -> Result {
    let lay = |fixture: &Fixture| {
        let path = fixture.file("tmp/runc-process123");
        fs::write(&path, "")?;
        Ok(path)
    };
    plant(Kind::File, lay, |_, path| Ok(fs::remove_file(path)?))
}

#[test]
fn fifo_is_found_in_the_shared_directory() -> Result {
    let lay = |fixture: &Fixture| {
        let dir = std::path::Path::new("/run/containerd/fifo");
        fs::create_dir_all(dir)?;
        let path = dir.join(fixture.id("stdin"));
        mkfifo(&path, Mode::S_IRWXU)?;
        Ok(path)
    };
    plant(Kind::Fifo, lay, |_, path| Ok(fs::remove_file(path)?))
}

#[test]
fn runtime_state_is_found() -> Result {
    let lay = |fixture: &Fixture| {
        let dir = std::path::Path::new("/run/containerd/runc").join(fixture.namespace());
        fs::create_dir_all(dir.join(fixture.id("a")))?;
        Ok(dir)
    };
    plant(Kind::File, lay, |_, dir| Ok(fs::remove_dir_all(dir)?))
}

#[test]
fn loop_device_is_found() -> Result {
    let attach = |fixture: &Fixture| {
        let file = fixture.file("image");
        fs::File::create(&file)?.set_len(1 << 20)?;
        let output = Command::new("losetup").arg("--find").arg("--show").arg(&file).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if !std::path::Path::new("/dev/loop-control").exists() {
        return integration::scenario::skip("this machine has no loop devices");
    }
    plant(Kind::Loop, attach, |_, device| {
        Command::new("losetup").arg("--detach").arg(device).status()?;
        Ok(())
    })
}

#[test]
fn descriptors_of_a_watched_process_are_found() -> Result {
    let scope = Scope { watched: vec![std::process::id()], ..Scope::of("no such token") };
    // Other tests of this process open files too: theirs are not of these.
    let fresh = |before: &Snapshot, what: &str| {
        let items = Snapshot::take(&scope).since(before);
        let of = |item: &&integration::leak::Item| {
            item.kind == Kind::Descriptor && item.name.contains(what)
        };
        items.iter().filter(of).count()
    };
    let before = Snapshot::take(&scope);
    let file = fs::File::open("/dev/full")?;
    ensure!(fresh(&before, "/dev/full") == 1, "an open file is not found");
    let second = file.try_clone()?;
    ensure!(fresh(&before, "/dev/full") == 2, "a second one is not found");
    drop((file, second));
    ensure!(fresh(&before, "/dev/full") == 0, "closed ones are found");
    let (planted, other) = std::os::unix::net::UnixStream::pair()?;
    let many: Vec<_> = (0..50).map(|_| planted.try_clone()).collect::<std::io::Result<_>>()?;
    ensure!(fresh(&before, "socket") >= many.len(), "sockets are not found");
    drop((other, many));
    Ok(())
}

#[test]
fn leakcheck_tells_what_is_left_of_each_kind_by_its_exit_code() -> Result {
    let run =
        |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_leakcheck")).args(arguments).output();
    let fixture = Fixture::new()?;
    let held = sleeper().stdout(fs::File::create(fixture.file("held"))?).spawn()?;
    let pid = held.id().to_string();
    let before = run(&["snapshot", &pid])?;
    ensure!(before.status.success(), "{before:?}");
    let file = fixture.file("before.json");
    fs::write(&file, &before.stdout)?;
    let file = file.display().to_string();

    // A fifo in a shared place, and a process that looks like a shim.
    let fifos = std::path::Path::new("/run/containerd/fifo");
    fs::create_dir_all(fifos)?;
    let fifo = fifos.join(fixture.id("left"));
    mkfifo(&fifo, Mode::S_IRWXU)?;
    let mut planted = Command::new("tail");
    planted.args(["-f", "/dev/null"]);
    std::os::unix::process::CommandExt::arg0(&mut planted, "containerd-shim-left");
    let planted = planted.spawn()?;
    let found = run(&["diff", &file, &pid])?;
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    fs::remove_file(&fifo)?;
    for child in [planted, held] {
        end(&fixture, child)?;
    }
    fs::remove_dir_all(fixture.dir())?;
    ensure!(found.status.code() == Some(1), "{said}");
    let name = fifo.display().to_string();
    ensure!(said.contains(&name) && said.contains("containerd-shim-left"), "{said}");
    ensure!(run(&["diff", "/nonexistent"])?.status.code() == Some(2), "a missing file");
    ensure!(run(&["snapshot", "x"])?.status.code() == Some(2), "no pid");
    Ok(())
}

#[test]
fn open_file_and_thread_of_a_process_are_counted() -> Result {
    let before = Usage::of(std::process::id())?;
    let files: Vec<fs::File> =
        (0..20).map(|_| fs::File::open("/dev/zero")).collect::<std::io::Result<_>>()?;
    let after = Usage::of(std::process::id())?;
    let count = |usage: &Usage| usage.fds.iter().filter(|fd| *fd == "/dev/zero").count();
    ensure!(count(&after) == count(&before) + files.len(), "{after:?}");
    Ok(())
}

#[test]
fn machine_snapshot_sees_a_strangers_process() -> Result {
    let before = Snapshot::take(&Scope::machine());
    let mut command = Command::new("tail");
    command.args(["-f", "/dev/null"]);
    std::os::unix::process::CommandExt::arg0(&mut command, "containerd-shim-planted");
    let mut child = command.spawn()?;
    let seen = Snapshot::take(&Scope::machine()).since(&before);
    child.kill()?;
    child.wait()?;
    ensure!(seen.iter().any(|item| item.detail.contains("planted")), "{seen:?}");
    Ok(())
}

#[test]
fn sweep_removes_what_a_failed_test_leaves() -> Result {
    let fixture = Fixture::new()?;
    let before = Snapshot::take(&fixture.scope());
    let mut child = sleeper().env(MARKER, fixture.namespace()).spawn()?;
    let point = fixture.file("point");
    fs::create_dir(&point)?;
    mount(Some("none"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    fs::write(fixture.file("tmp/left"), "")?;
    // The child is this process's: without someone to reap it, it would stay as a zombie.
    let reaper = std::thread::spawn(move || child.wait());
    sweep(&fixture.scope());
    let left = Snapshot::take(&fixture.scope()).since(&before);
    drop(reaper.join());
    fs::remove_dir_all(fixture.dir())?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn scenario_fails_when_something_is_left() {
    let outcome = scenario_settling(Duration::ZERO, async |fixture| {
        fs::write(fixture.file("tmp/left"), "")?;
        Ok(())
    });
    let failure = outcome.expect_err("a leak must fail the test");
    assert!(failure.to_string().contains("tmp/left"), "{failure}");
}

#[test]
fn scenario_tells_the_tests_own_failure_first() {
    let outcome = scenario(async |fixture| {
        fs::write(fixture.file("tmp/left"), "")?;
        Err(Failure::new("the reason"))
    });
    assert_eq!(outcome.expect_err("it failed").to_string(), "the reason");
}
