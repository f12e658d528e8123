//! Mounts by way of a loop device or of a program.

use std::process::Command;
use std::time::Instant;

use runtime_proto::errdefs::Code;

use super::*;

/// The loop device behind a mount, if the place is one.
fn device_at(place: &Path) -> Option<String> {
    let told = told_of(place)?;
    told.split(' ').find(|word| word.starts_with("/dev/loop")).map(str::to_owned)
}

#[test]
fn a_file_is_mounted_by_a_loop_device_that_ends_with_it() {
    apart(|top| {
        let rootfs = rootfs(top);
        let Some(image) = image(top) else { return };
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

/// A file with an empty ext4 filesystem, where such a thing can be made and mounted.
pub(super) fn image(top: &Path) -> Option<PathBuf> {
    if !Path::new("/dev/loop-control").exists() {
        skip("loop mounts: no loop devices");
        return None;
    }
    let image = top.join("image");
    File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let Ok(mut mkfs) = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).spawn() else {
        skip("loop mounts: no mkfs.ext4");
        return None;
    };
    join(&mut mkfs);
    Some(image)
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
