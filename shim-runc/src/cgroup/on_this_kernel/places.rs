//! What is written into cgroups.

use super::*;

#[test]
fn a_frozen_cgroup_is_seen_and_thawed() {
    let Some(fresh) = Fresh::new("freezer") else { return };
    let _shell = fresh.run("exec sleep 1000");
    let (file, word) = if fresh.cgroup.is_unified() {
        ("cgroup.freeze", "1")
    } else {
        ("freezer.state", "FROZEN")
    };
    let directory = fresh.cgroup.layout().controller("freezer").unwrap();
    assert_eq!(fresh.cgroup.freezer_state().unwrap(), FreezerState::Thawed);
    fs::write(directory.join(file), word).unwrap();
    assert_ne!(fresh.cgroup.freezer_state().unwrap(), FreezerState::Thawed);
    fresh.cgroup.thaw().unwrap();
    assert_eq!(fresh.cgroup.freezer_state().unwrap(), FreezerState::Thawed);
}

#[test]
fn a_pid_is_moved_into_the_cgroup_of_that_name() {
    let Some(fresh) = Fresh::new("join") else { return };
    let shell = Shell::run("exec sleep 1000");
    // On v1 the fresh cgroups are below the own ones, which differ by hierarchy.
    let Layout::Unified { top, dir } = fresh.cgroup.layout() else {
        return joins_where_it_exists(&shell);
    };
    let path = Path::new("/").join(dir.strip_prefix(top).unwrap());
    add_pid(path.to_str().unwrap(), shell.pid()).unwrap();
    assert_eq!(fresh.file("pids", "cgroup.procs"), shell.pid().to_string());
    assert!(add_pid(path.to_str().unwrap(), u32::MAX).is_err(), "no such process");
}

fn joins_where_it_exists(shell: &Shell) {
    let own = Cgroup::of_pid(std::process::id()).unwrap();
    let Some(memory) = layout::cgroup_mounts().unwrap().into_iter().find(|m| m.has("memory"))
    else {
        return;
    };
    let name = format!("shim-test-{}-join-v1", std::process::id());
    let layout = Layout::v1(&["memory"], &memory.mount_point.join(&name));
    let only = Fresh { cgroup: Cgroup::from(layout) };
    fs::create_dir(memory.mount_point.join(&name)).unwrap();
    add_pid(&format!("/{name}"), shell.pid()).unwrap();
    assert_eq!(only.file("memory", "cgroup.procs"), shell.pid().to_string());
    let back = own.layout().controller("memory").unwrap().join("cgroup.procs");
    fs::write(back, shell.pid().to_string()).unwrap();
}

#[test]
fn controllers_are_handed_down_to_a_cgroup_deep_below() {
    let Some(fresh) = Fresh::new("deep") else { return };
    let Layout::Unified { top, dir } = fresh.cgroup.layout() else { return };
    let below = dir.join("below");
    fs::create_dir(&below).unwrap();
    let deep = Cgroup::from(Layout::Unified { top: top.clone(), dir: below.clone() });
    assert!(!below.join("pids.current").exists());
    deep.enable_controllers();
    for file in ["pids.current", "memory.current"] {
        assert!(below.join(file).exists(), "{file}");
    }
}
