use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};

use runtime_proto::{any, bootstrap::Bootstrap};
use tempfile::TempDir;

use super::*;
use crate::config::Daemon;

fn config(dir: &TempDir) -> Config {
    let daemon = Daemon {
        grpc_address: "/g".into(),
        ttrpc_address: "/t".into(),
        binary: "/bin/true".into(),
        version: "0".into(),
    };
    Config::new(dir.path().join("state"), dir.path().join("root"), daemon)
}

fn key() -> Key {
    Key::new("ns", "c1").unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn spec(text: &str) -> Any {
    any::raw(any::OCI_SPEC, text.into())
}

#[test]
fn modes_are_exact_whatever_the_umask() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    // The umask belongs to the whole process, so the extremes are tried in children of their own
    // by the test of the library; here the modes are those of the umask the tests run with.
    let bundle = Bundle::create(&config, key(), Some(&spec("{}"))).unwrap();
    assert_eq!(mode(bundle.path()), 0o700);
    assert_eq!(mode(bundle.path().parent().unwrap()), 0o711);
    assert_eq!(mode(&config.state), 0o711);
    assert_eq!(mode(&bundle.path().join("rootfs")), 0o711);
    assert_eq!(mode(&bundle.work), 0o711);
    assert_eq!(mode(&bundle.path().join("config.json")), 0o600);
    assert_eq!(fs::read(bundle.path().join("config.json")).unwrap(), b"{}");
    assert_eq!(fs::read_link(bundle.path().join("work")).unwrap(), bundle.work);
}

#[test]
fn the_root_of_a_user_namespace_may_pass_by_its_group() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mapped = r#"{"linux":{"gidMappings":[{"containerID":0,"hostID":4321,"size":9}]}}"#;
    let bundle = Bundle::create(&config(&dir), key(), Some(&spec(mapped))).unwrap();
    assert_eq!(mode(bundle.path()), 0o710);
    assert_eq!(fs::metadata(bundle.path()).unwrap().gid(), 4321);
}

#[test]
fn specs_of_every_kind_make_a_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let odd = [None, Some(Any::new()), Some(spec("")), Some(spec("null")), Some(spec("{}"))];
    for spec in odd {
        let bundle = Bundle::create(&config, key(), spec.as_ref()).unwrap();
        let written = spec.is_some_and(|spec| !spec.value.is_empty());
        assert_eq!(bundle.path().join("config.json").exists(), written);
        bundle.remove().unwrap();
    }
}

#[test]
fn an_existing_directory_is_left_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let bundle = Bundle::create(&config, key(), Some(&spec("{}"))).unwrap();
    let again = Bundle::create(&config, key(), Some(&spec("[]"))).unwrap_err();
    assert_eq!(again.kind(), Code::AlreadyExists);
    assert_eq!(fs::read(bundle.path().join("config.json")).unwrap(), b"{}");
}

#[test]
fn removal_leaves_nothing_and_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let bundle = Bundle::create(&config, key(), None).unwrap();
    // Left over by a removal that was cut off.
    fs::create_dir_all(bundle.path().with_file_name(".c1/deep")).unwrap();
    bundle.remove().unwrap();
    bundle.remove().unwrap();
    assert_eq!(fs::read_dir(config.state.join("ns")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(config.root.join("ns")).unwrap().count(), 0);
}

#[test]
fn what_is_in_the_root_file_system_is_never_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    let sentinel = bundle.path().join("rootfs/sentinel");
    fs::write(&sentinel, "").unwrap();
    assert!(bundle.remove().is_err());
    assert!(sentinel.exists());
    fs::remove_file(&sentinel).unwrap();
    bundle.remove().unwrap();
    assert!(!bundle.path().exists());
}

/// Mounts `source` at `target`; false where nobody may.
fn bind(source: &Path, target: &Path) -> bool {
    use nix::mount::{MsFlags, mount};
    fs::create_dir_all(target).unwrap();
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).is_ok()
}

#[test]
fn what_is_mounted_anywhere_in_a_bundle_is_never_walked_into() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let sentinel = source.join("sentinel");
    fs::write(&sentinel, "").unwrap();
    let bundle = Bundle::create(&config, key(), None).unwrap();
    // By shims that share more with a container than its root file system.
    let (shared, work) = (bundle.path().join("shared/deep"), bundle.work.join("images"));
    if !bind(&source, &shared) {
        return;
    }
    assert!(bind(&source, &work));
    let held = fs::File::open(&shared).unwrap();
    assert!(bundle.remove().is_err());
    assert!(sentinel.exists() && shared.join("sentinel").exists());
    drop(held);
    bundle.remove().unwrap();
    assert!(sentinel.exists() && !bundle.path().exists() && !bundle.work.exists());

    // What earlier attempts and containers have left.
    for left in [bundle.path().with_file_name(".c1/x"), bundle.work.with_file_name(".c1/x")] {
        assert!(bind(&source, &left));
        fs::write(left.with_file_name("config.json"), "").unwrap();
        bundle.remove_leftovers().unwrap();
        assert!(sentinel.exists() && !left.exists());
        assert!(bind(&source, &left));
        Bundle::create(&config, key(), None).unwrap();
        bundle.remove().unwrap();
        assert!(sentinel.exists() && !left.exists());
    }
    assert!(bind(&source, &work));
    Bundle::create(&config, key(), None).unwrap();
    assert!(sentinel.exists());
    assert!(bind(&source, &work));
    bundle.remove_work().unwrap();
    assert!(sentinel.exists() && !bundle.work.exists());
}

#[test]
fn what_a_link_in_the_place_of_the_root_file_system_leads_to_stays_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    let (source, elsewhere) = (dir.path().join("source"), dir.path().join("elsewhere"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("sentinel"), "").unwrap();
    if !bind(&source, &elsewhere) {
        return;
    }
    let rootfs = bundle.path().join("rootfs");
    fs::remove_dir(&rootfs).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &rootfs).unwrap();
    let removed = bundle.remove();
    let stayed = elsewhere.join("sentinel").exists();
    let _ = nix::mount::umount2(&elsewhere, nix::mount::MntFlags::MNT_DETACH);
    assert!(stayed && source.join("sentinel").exists());
    removed.unwrap();
    assert!(!bundle.path().exists());
}

#[test]
fn where_the_shim_is_survives_a_round_trip_in_the_form_containerd_reads() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    assert_eq!(bundle.located(), Located::Nowhere);
    let bootstrap = Bootstrap::ttrpc(3, "unix:///run/containerd/s/x");
    bundle.write_bootstrap(&bootstrap).unwrap();
    let file = bundle.path().join("bootstrap.json");
    assert_eq!(mode(&file), 0o644);
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        r#"{"version":3,"address":"unix:///run/containerd/s/x","protocol":"ttrpc"}"#
    );
    assert_eq!(bundle.located(), Located::At(bootstrap));
    bundle.forget_shim();
    fs::write(bundle.path().join("address"), "unix:///old\n").unwrap();
    assert_eq!(bundle.located(), Located::AtLegacy(Bootstrap::ttrpc(2, "unix:///old")));
}

#[test]
fn damaged_files_are_told_from_missing_ones() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    let file = bundle.path().join("bootstrap.json");
    let large = vec![0xff; 1 << 20];
    let damaged: [&[u8]; 6] = [b"", b"{\"version\":3,\"addr", b"{}", &large, &[0xff; 9], b"a b"];
    for bytes in damaged {
        fs::write(&file, bytes).unwrap();
        assert!(matches!(bundle.located(), Located::Garbled(_)));
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(matches!(bundle.located(), Located::Garbled(_)), "a directory");
    fs::remove_dir(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(bundle.located(), Located::Garbled(_)), "a fifo");
    bundle.remove().unwrap();
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_old_one_whole() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    let old = Bootstrap::ttrpc(3, "unix:///old");
    bundle.write_bootstrap(&old).unwrap();
    // A directory in the place of the temporary file stops even root.
    fs::create_dir(bundle.path().join(".bootstrap.json")).unwrap();
    assert!(bundle.write_bootstrap(&Bootstrap::ttrpc(2, "unix:///new")).is_err());
    assert_eq!(bundle.located(), Located::At(old));
}

#[test]
fn small_facts_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    assert_eq!(bundle.binary_path(), None);
    bundle.write_binary_path(Path::new("/opt/x/shim")).unwrap();
    assert_eq!(bundle.binary_path(), Some("/opt/x/shim".into()));
    assert_eq!(bundle.sandbox(), None);
    assert_eq!(bundle.origin(), Origin::Started);
    bundle.write_sandbox("s1", Origin::Joined).unwrap();
    assert_eq!(bundle.origin(), Origin::Joined);
    bundle.write_sandbox("s1", Origin::Shared).unwrap();
    assert_eq!(bundle.origin(), Origin::Shared);
    assert_eq!(bundle.sandbox().as_deref(), Some("s1"));
    for (text, pid) in [("12", Some(12)), ("12\n", Some(12)), ("0", None), ("x", None), ("", None)]
    {
        fs::write(bundle.path().join("init.pid"), text).unwrap();
        assert_eq!(bundle.init_pid(), pid, "{text:?}");
    }
    let fifo = bundle.log_fifo().unwrap();
    assert_eq!(fs::metadata(&fifo).unwrap().permissions().mode() & 0o077, 0);
    assert_eq!(bundle.log_fifo().unwrap(), fifo, "again");
}

#[test]
fn a_removal_that_was_cut_off_anywhere_can_be_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    // Each time one file less has been removed.
    let files = ["init.pid", "log.json", "options.json", "x.exec.pid"];
    for removed in 0..=files.len() {
        let bundle = Bundle::create(&config, key(), None).unwrap();
        for file in &files[removed..] {
            fs::write(bundle.path().join(file), "").unwrap();
        }
        fs::remove_dir(bundle.path().join("rootfs")).unwrap();
        let hidden = bundle.path().with_file_name(format!(".{}", key().id));
        fs::rename(bundle.path(), &hidden).unwrap();
        bundle.remove_leftovers().unwrap();
        assert!(!hidden.exists());
        fs::create_dir(&hidden).unwrap();
        bundle.remove_leftovers().unwrap();
        assert!(!hidden.exists(), "all but the directory had gone");
        bundle.remove_work().unwrap();
    }
}

#[test]
fn an_old_address_is_forgotten_with_its_socket_if_the_new_form_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = Bundle::create(&config(&dir), key(), None).unwrap();
    let (socket, old) = (dir.path().join("s"), bundle.path().join("address"));
    let address = format!("unix://{}", socket.display());
    fs::write(&old, &address).unwrap();
    bundle.forget_dead_address();
    assert!(old.exists(), "it is all that is known");
    bundle.write_bootstrap(&Bootstrap::ttrpc(2, &address)).unwrap();
    fs::write(&socket, "").unwrap();
    bundle.forget_dead_address();
    assert!(old.exists(), "the shim removes both");
    fs::remove_file(&socket).unwrap();
    bundle.forget_dead_address();
    assert!(!old.exists());
}
