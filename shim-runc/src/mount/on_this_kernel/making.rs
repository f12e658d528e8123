//! Plain and bind mounts, their flags, and where they may go.

use std::os::unix::fs::symlink;

use nix::errno::Errno;
use runtime_proto::errdefs::Code;

use super::*;

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
        unmount_recursive(&rootfs, PATIENCE).unwrap();
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

#[test]
fn other_options_longer_than_a_page_are_refused() {
    apart(|top| {
        let long = format!("size=64k,{}", "x".repeat(5000));
        let error = make_all(&rootfs(top), &[mount_of("tmpfs", "t", &[&long])]).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
    });
}
