//! Tests with real mounts, each in a mount namespace of its own. They need root.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use runtime_proto::errdefs::Code;

use super::*;

/// Says that this machine cannot run a test: to its reader, and to the list that the caller keeps.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
    if let Some(list) = std::env::var_os("SKIPPED") {
        let mut list = File::options().append(true).create(true).open(list).unwrap();
        writeln!(list, "{why}").unwrap();
    }
}

/// Runs a test in a fresh directory and a mount namespace that ends with it.
fn apart(test: impl FnOnce(&Path) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        return skip("mounts: not root");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        // A filesystem of its own: one that takes every kind of mount on top.
        nix::mount::mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>)
            .unwrap();
        test(&path);
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

fn mount_of(type_: &str, source: impl AsRef<Path>, options: &[&str]) -> Mount {
    Mount {
        type_: type_.into(),
        source: source.as_ref().display().to_string(),
        target: String::new(),
        options: options.iter().map(|&option| option.to_owned()).collect(),
    }
}

fn bind(source: impl AsRef<Path>, options: &[&str]) -> Mount {
    mount_of("bind", source, &[&["rbind"], options].concat())
}

fn at(target: &str, mount: Mount) -> Mount {
    Mount { target: target.into(), ..mount }
}

fn make_all(rootfs: &Path, mounts: &[Mount]) -> Result<RootfsMounts> {
    mount_all(rootfs, mounts, &NoHelper)
}

/// A directory with a file in it that has its name.
fn marked(parent: &Path, name: &str) -> PathBuf {
    let directory = parent.join(name);
    fs::create_dir_all(&directory).unwrap();
    let mark = directory.file_name().unwrap().to_owned();
    fs::write(directory.join(mark), "").unwrap();
    directory
}

fn rootfs(parent: &Path) -> PathBuf {
    let rootfs = parent.join("rootfs");
    fs::create_dir(&rootfs).unwrap();
    rootfs
}

/// Options and optional fields of the topmost mount at a place.
fn told_of(place: &Path) -> Option<String> {
    let table = fs::read_to_string(mountinfo::OWN_MOUNTS).unwrap();
    let here =
        |line: &&str| mountinfo::Entry::parse(line.as_bytes()).unwrap().mount_point() == place;
    let words = |line: &str| line.split(' ').skip(5).collect::<Vec<_>>().join(" ");
    table.lines().rfind(here).map(words)
}

fn mounted_within(place: &Path) -> usize {
    let mut count = 0;
    let visit = |entry: mountinfo::Entry<'_>| count += usize::from(entry.is_within(place));
    mountinfo::for_each(Path::new(mountinfo::OWN_MOUNTS), visit).unwrap();
    count
}

#[test]
fn mounts_are_made_in_order_and_taken_away_with_the_guard() {
    apart(|top| {
        let rootfs = rootfs(top);
        let first = marked(top, "first");
        fs::create_dir_all(first.join("inner/deep")).unwrap();
        let mounts = [
            bind(first, &[]),
            at("/inner", mount_of("tmpfs", "tmpfs", &["size=64k", "mode=0700"])),
            at("inner", bind(marked(top, "second"), &[])),
        ];
        let guard = make_all(&rootfs, &mounts).unwrap();
        assert!(rootfs.join("first").exists() && rootfs.join("inner/second").exists());
        assert_eq!(mounted_within(&rootfs), 3);
        drop(guard);
        assert_eq!(mounted_within(&rootfs), 0);
        make_all(&rootfs, &mounts).unwrap().keep();
        assert_eq!(mounted_within(&rootfs), 3);
        unmount_recursive(&rootfs).unwrap();
        assert_eq!(mounted_within(&rootfs), 0);
    });
}

#[test]
fn a_failure_takes_the_mounts_before_it_away() {
    apart(|top| {
        let rootfs = rootfs(top);
        let good = bind(marked(top, "good"), &[]);
        let missing = bind(top.join("missing"), &[]);
        let error = make_all(&rootfs, &[good.clone(), good.clone(), missing]).unwrap_err();
        assert!(error.to_string().contains("/missing"), "{error}");
        assert_eq!(error.kind(), Code::NotFound);
        // Mounted, and then its propagation is refused.
        let half = bind(marked(top, "half"), &["private", "mode=1"]);
        let half = Mount { options: [half.options, vec!["uidmap=x".into()]].concat(), ..half };
        let bad_map = Mount { options: [half.options, vec!["gidmap=x".into()]].concat(), ..good };
        assert_eq!(make_all(&rootfs, &[bad_map]).unwrap_err().kind(), Code::InvalidArgument);
        let error = make_all(&rootfs, &[at("none", bind("/", &[]))]).unwrap_err();
        assert_eq!(error.kind(), Code::NotFound);
        assert_eq!(mounted_within(&rootfs), 0);
    });
}

#[test]
fn flags_of_bind_mounts_are_really_set() {
    apart(|top| {
        let rootfs = rootfs(top);
        let source = marked(top, "source");
        let guard = make_all(&rootfs, &[bind(&source, &["ro", "nosuid", "nodev", "noexec"])]);
        let told = told_of(&rootfs).unwrap();
        for flag in ["ro", "nosuid", "nodev", "noexec"] {
            let options = told.split(' ').next().unwrap();
            assert!(options.split(',').any(|option| option == flag), "{flag}: {told}");
        }
        let refused = fs::write(rootfs.join("new"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::EROFS as i32));
        fs::write(source.join("new"), "").unwrap();
        drop(guard);
        let _guard = make_all(&rootfs, &[bind(&source, &["nosuid"])]).unwrap();
        assert!(told_of(&rootfs).unwrap().starts_with("rw,nosuid"));
    });
}

#[test]
fn a_bind_of_a_restricted_mount_keeps_the_restrictions() {
    apart(|top| {
        let source = top.join("source");
        fs::create_dir(&source).unwrap();
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        nix::mount::mount(Some("t"), &source, Some("tmpfs"), flags, None::<&str>).unwrap();
        let rootfs = rootfs(top);
        let _guard = make_all(&rootfs, &[bind(&source, &["ro"])]).unwrap();
        assert!(told_of(&rootfs).unwrap().starts_with("ro,nosuid,nodev,noexec"));
    });
}

#[test]
fn propagation_is_set() {
    apart(|top| {
        let rootfs = rootfs(top);
        let source = marked(top, "source");
        let guard = make_all(&rootfs, &[bind(&source, &["rshared"])]).unwrap();
        assert!(told_of(&rootfs).unwrap().contains("shared:"));
        drop(guard);
        let guard = make_all(&rootfs, &[bind(&source, &["shared", "slave"])]).unwrap();
        drop(guard);
        let _guard = make_all(&rootfs, &[bind(&source, &["unbindable"])]).unwrap();
        assert!(told_of(&rootfs).unwrap().contains("unbindable"));
    });
}

#[test]
fn a_remount_changes_a_mount_and_is_none_of_its_own() {
    apart(|top| {
        let rootfs = rootfs(top);
        let mounts = [
            mount_of("tmpfs", "tmpfs", &["size=64k"]),
            mount_of("tmpfs", "tmpfs", &["remount", "ro", "size=32k"]),
        ];
        let guard = make_all(&rootfs, &mounts).unwrap();
        let told = told_of(&rootfs).unwrap();
        assert!(told.starts_with("ro") && told.contains("size=32k"), "{told}");
        drop(guard);
        assert_eq!(mounted_within(&rootfs), 0);
    });
}

#[test]
fn targets_never_leave_the_root() {
    apart(|top| {
        let rootfs = rootfs(top);
        let image = marked(top, "image");
        let outside = marked(top, "outside");
        fs::create_dir(image.join("inside")).unwrap();
        symlink(&outside, image.join("absolute")).unwrap();
        symlink("../outside", image.join("upwards")).unwrap();
        symlink("/inside", image.join("link")).unwrap();
        let source = marked(top, "source");
        for target in ["absolute", "upwards", "../outside", "/../../outside"] {
            let mounts = [bind(&image, &[]), at(target, bind(&source, &[]))];
            let error = make_all(&rootfs, &mounts).unwrap_err();
            assert_eq!(error.kind(), Code::NotFound, "{target}: {error}");
        }
        let mounts = [bind(&image, &[]), at("link", bind(&source, &[]))];
        let guard = make_all(&rootfs, &mounts).unwrap();
        assert!(rootfs.join("inside/source").exists());
        drop(guard);
        assert_eq!((mounted_within(&rootfs), mounted_within(&outside)), (0, 0));
    });
}

#[test]
fn a_file_is_mounted_on_a_file() {
    apart(|top| {
        let rootfs = rootfs(top);
        fs::write(rootfs.join("file"), "below").unwrap();
        fs::write(top.join("source"), "above").unwrap();
        let mounts = [at("file", bind(top.join("source"), &["ro"]))];
        let guard = make_all(&rootfs, &mounts).unwrap();
        assert_eq!(fs::read_to_string(rootfs.join("file")).unwrap(), "above");
        drop(guard);
        assert_eq!(fs::read_to_string(rootfs.join("file")).unwrap(), "below");
    });
}

fn overlay_of(layers: &[PathBuf], top: &Path, more: &[&str]) -> Mount {
    let names: Vec<_> = layers.iter().map(|layer| layer.display().to_string()).collect();
    for directory in ["upper", "work"] {
        fs::create_dir_all(top.join(directory)).unwrap();
    }
    let mut mount = mount_of("overlay", "overlay", more);
    mount.options.extend([
        format!("lowerdir={}", names.join(":")),
        format!("upperdir={}", top.join("upper").display()),
        format!("workdir={}", top.join("work").display()),
    ]);
    mount
}

#[test]
fn an_overlay_of_sixty_long_layers_is_mounted() {
    apart(|top| {
        let rootfs = rootfs(top);
        let long = |index| marked(top, &format!("{}-{index}/fs{index}", "x".repeat(120)));
        let layers: Vec<_> = (0..60).map(long).collect();
        let mount = overlay_of(&layers, top, &["nosuid", "nodev", "volatile"]);
        assert!(mount.options.iter().map(String::len).sum::<usize>() > 2 * 4096);
        let guard = make_all(&rootfs, &[mount]).unwrap();
        for index in 0..60 {
            assert!(rootfs.join(format!("fs{index}")).exists(), "layer {index}");
        }
        fs::write(rootfs.join("new"), "").unwrap();
        assert!(top.join("upper/new").exists());
        let told = told_of(&rootfs).unwrap();
        assert!(told.starts_with("rw,nosuid,nodev") && told.contains("volatile"), "{told}");
        drop(guard);
        assert_eq!(mounted_within(&rootfs), 0);
    });
}

#[test]
fn layers_too_long_to_be_said_at_all_are_mounted() {
    apart(|top| {
        let rootfs = rootfs(top);
        let parts = ["y".repeat(200), "z".repeat(200)].join("/");
        let layers: Vec<_> = (0..20).map(|i| marked(top, &format!("{parts}/a:b,{i}"))).collect();
        let escape = |layer: &PathBuf| {
            PathBuf::from(layer.display().to_string().replace(':', r"\:").replace(',', r"\,"))
        };
        let escaped: Vec<_> = layers.iter().map(escape).collect();
        let _guard = make_all(&rootfs, &[overlay_of(&escaped, top, &["ro"])]).unwrap();
        for index in 0..20 {
            assert!(rootfs.join(format!("a:b,{index}")).exists(), "layer {index}");
        }
        assert!(told_of(&rootfs).unwrap().starts_with("ro"));
    });
}

#[test]
fn a_long_overlay_with_a_missing_layer_names_it() {
    apart(|top| {
        let rootfs = rootfs(top);
        let long = |index| marked(top, &format!("{}-{index}/fs{index}", "x".repeat(120)));
        let mut layers: Vec<_> = (0..60).map(long).collect();
        layers.push(top.join("missing"));
        let error = make_all(&rootfs, &[overlay_of(&layers, top, &[])]).unwrap_err();
        assert!(error.to_string().contains("/missing"), "{error}");
        assert_eq!(mounted_within(&rootfs), 0);
    });
}

#[test]
fn other_options_longer_than_a_page_are_refused() {
    apart(|top| {
        let long = format!("size=64k,{}", "x".repeat(5000));
        let error = make_all(&rootfs(top), &[mount_of("tmpfs", "t", &[&long])]).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
    });
}

/// Like [`apart`], where the filesystem of the test can have its ids mapped.
fn apart_with_ids(test: impl FnOnce(&Path) + Send + 'static) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let number = |part: Option<&str>| part.and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    let mut parts = release.split('.');
    if (number(parts.next()), number(parts.next())) < (6, 3) {
        return skip("mapped ids: tmpfs of this kernel has none");
    }
    apart(test);
}

const MAPS: [&str; 2] = ["uidmap=0:1000:500", "gidmap=0:2000:500"];

#[test]
fn ids_of_a_bind_mount_are_mapped() {
    apart_with_ids(|top| {
        let rootfs = rootfs(top);
        let source = marked(top, "source");
        let mounts = [bind(&source, &[&MAPS[..], &["ro", "rslave"]].concat())];
        let guard = make_all(&rootfs, &mounts).unwrap();
        let shown = fs::metadata(rootfs.join("source")).unwrap();
        assert_eq!((shown.uid(), shown.gid()), (1000, 2000));
        assert_eq!(mounted_within(&rootfs), 1, "it takes the place of the plain one");
        assert!(told_of(&rootfs).unwrap().starts_with("ro"));
        drop(guard);
        assert_eq!(mounted_within(&rootfs), 0);
        assert_eq!(fs::metadata(source.join("source")).unwrap().uid(), 0);
    });
}

#[test]
fn ids_of_the_layers_of_an_overlay_are_mapped() {
    apart_with_ids(|top| {
        let rootfs = rootfs(top);
        let layers = [marked(top, "layer1"), marked(top, "layer2")];
        let guard = make_all(&rootfs, &[overlay_of(&layers, top, &MAPS)]).unwrap();
        for name in ["layer1", "layer2"] {
            let shown = fs::metadata(rootfs.join(name)).unwrap();
            assert_eq!((shown.uid(), shown.gid()), (1000, 2000), "{name}");
        }
        assert!(!top.join("rootfs.layers").exists());
        assert_eq!(mounted_within(top), 2, "the overlay and what it stands on");
        drop(guard);
        assert_eq!(mounted_within(&rootfs), 0);
    });
}

#[test]
fn no_process_is_left_of_a_mapping() {
    apart_with_ids(|top| {
        let rootfs = rootfs(top);
        let source = marked(top, "source");
        let children = || fs::read_to_string("/proc/thread-self/children").unwrap();
        let before = children();
        for _ in 0..20 {
            drop(make_all(&rootfs, &[bind(&source, &MAPS)]).unwrap());
        }
        assert_eq!(children(), before);
    });
}

/// The loop device behind a mount, if the place is one.
fn device_at(place: &Path) -> Option<String> {
    let told = told_of(place)?;
    told.split(' ').find(|word| word.starts_with("/dev/loop")).map(str::to_owned)
}

#[test]
fn a_file_is_mounted_by_a_loop_device_that_ends_with_it() {
    apart(|top| {
        if !Path::new("/dev/loop-control").exists() {
            return skip("loop mount: no loop devices");
        }
        let rootfs = rootfs(top);
        let image = top.join("image");
        File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).spawn();
        let Ok(mut mkfs) = made else {
            return skip("loop mount: no mkfs.ext4");
        };
        join(&mut mkfs);
        let guard = make_all(&rootfs, &[mount_of("ext4", &image, &["loop"])]).unwrap();
        assert!(rootfs.join("lost+found").exists());
        fs::write(rootfs.join("new"), "").unwrap();
        let device = device_at(&rootfs).unwrap();
        let backing = Path::new("/sys/block").join(&device[5..]).join("loop/backing_file");
        assert!(fs::read_to_string(&backing).unwrap().contains("image"));
        drop(guard);
        gone(&backing);
        let guard = make_all(&rootfs, &[mount_of("ext4", &image, &["loop", "ro"])]).unwrap();
        let device = device_at(&rootfs).unwrap();
        let read_only = Path::new("/sys/block").join(&device[5..]).join("ro");
        assert_eq!(fs::read_to_string(read_only).unwrap(), "1\n");
        drop(guard);
        let error = make_all(&rootfs, &[mount_of("nonsense", &image, &["loop"])]).unwrap_err();
        assert!(error.to_string().contains("nonsense"), "{error}");
    });
}

#[expect(clippy::disallowed_methods, reason = "the tests here have no reaper")]
fn join(child: &mut std::process::Child) {
    // A test of the reaper in this process may have been faster; gone is gone.
    let _ = child.wait();
}

/// The kernel lets go of a device a moment after the last use.
fn gone(path: &Path) {
    let begin = Instant::now();
    while path.exists() {
        assert!(begin.elapsed().as_secs() < 60, "{} stays", path.display());
        std::thread::yield_now();
    }
}

#[test]
fn filesystems_that_need_a_program_get_it() {
    struct Bind(PathBuf);
    impl MountHelper for Bind {
        fn run(&self, program: &str, arguments: &[std::ffi::OsString]) -> Result<()> {
            assert_eq!(program, "mount.fuse3");
            let target = arguments.get(1).unwrap().as_os_str();
            let flags = MsFlags::MS_BIND;
            nix::mount::mount(Some(&self.0), target, None::<&str>, flags, None::<&str>).unwrap();
            Ok(())
        }
    }
    apart(|top| {
        let rootfs = rootfs(top);
        fs::create_dir(rootfs.join("sub")).unwrap();
        let mounts = [at("sub", mount_of("fuse3.kind", "source", &["ro"]))];
        let guard = mount_all(&rootfs, &mounts, &Bind(marked(top, "served"))).unwrap();
        assert!(rootfs.join("sub/served").exists());
        drop(guard);
        assert_eq!(mounted_within(&rootfs), 0);
        assert_eq!(make_all(&rootfs, &mounts).unwrap_err().kind(), Code::Unimplemented);
    });
}

#[test]
fn what_is_not_mounted_is_unmounted_already() {
    apart(|top| {
        unmount_recursive(&rootfs(top)).unwrap();
        unmount_recursive(&top.join("missing")).unwrap();
        unmount_recursive(&top.join("missing/below")).unwrap();
        unmount_recursive(Path::new("")).unwrap();
    });
}

fn tmpfs_on(place: &Path) {
    fs::create_dir_all(place).unwrap();
    let flags = MsFlags::empty();
    nix::mount::mount(Some("t"), place, Some("tmpfs"), flags, None::<&str>).unwrap();
}

#[test]
fn nested_stacked_covered_and_oddly_named_mounts_are_all_unmounted() {
    apart(|top| {
        let odd = top.join("a b\tc\\d\u{e9}");
        for place in ["", "x", "x/y", "x/y", "z w", "x"] {
            tmpfs_on(&odd.join(place));
        }
        let beside = top.join("a b\tc\\d\u{e9}-not");
        tmpfs_on(&beside);
        assert_eq!(mounted_within(&odd), 6);
        symlink(top, top.join("way")).unwrap();
        unmount_recursive(&top.join("way").join(odd.file_name().unwrap())).unwrap();
        assert_eq!(mounted_within(&odd), 0);
        assert_eq!(mounted_within(&beside), 1, "a name that begins alike is another place");
    });
}

#[test]
fn a_busy_mount_is_waited_for() {
    apart(|top| {
        let place = top.join("busy");
        tmpfs_on(&place);
        let held = File::create(place.join("file")).unwrap();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(BUSY_FOR);
            drop(held);
        });
        unmount_recursive(&place).unwrap();
        holder.join().unwrap();
        assert_eq!(mounted_within(&place), 0);
    });
}

/// Long enough that the first attempts fail.
const BUSY_FOR: std::time::Duration = std::time::Duration::from_millis(300);

#[test]
fn a_mount_that_stays_busy_is_an_error_and_loses_nothing() {
    apart(|top| {
        let place = top.join("busy");
        for place in [&place, &place.join("held"), &place.join("free")] {
            tmpfs_on(place);
        }
        let held = File::create(place.join("held/sentinel")).unwrap();
        let error = unmount_recursive(&place).unwrap_err();
        assert!(error.to_string().contains("busy/held"), "{error}");
        assert!(place.join("held/sentinel").exists());
        assert_eq!(mounted_within(&place), 2, "its neighbour is gone, what it stands on is not");
        drop(held);
        unmount_recursive(&place).unwrap();
        assert_eq!(mounted_within(&place), 0);
    });
}

#[test]
fn a_link_in_place_of_the_directory_is_not_followed() {
    apart(|top| {
        let place = top.join("mounted");
        tmpfs_on(&place);
        symlink(&place, top.join("rootfs")).unwrap();
        unmount_recursive(&top.join("rootfs")).unwrap();
        assert_eq!(mounted_within(&place), 1);
        umount2(&place, MntFlags::empty()).unwrap();
    });
}
