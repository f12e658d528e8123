//! Taking mounts away.

use std::os::unix::fs::symlink;

use nix::mount::{MntFlags, umount2};

use super::*;

#[test]
fn what_is_not_mounted_is_unmounted_already() {
    apart(|top| {
        unmount_recursive(&rootfs(top), PATIENCE).unwrap();
        unmount_recursive(&top.join("missing"), PATIENCE).unwrap();
        unmount_recursive(&top.join("missing/below"), PATIENCE).unwrap();
        unmount_recursive(Path::new(""), PATIENCE).unwrap();
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
        unmount_recursive(&top.join("way").join(odd.file_name().unwrap()), PATIENCE).unwrap();
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
        unmount_recursive(&place, PATIENCE).unwrap();
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
        let error = unmount_recursive(&place, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("busy/held"), "{error}");
        assert!(place.join("held/sentinel").exists());
        assert_eq!(mounted_within(&place), 2, "its neighbour is gone, what it stands on is not");
        drop(held);
        unmount_recursive(&place, PATIENCE).unwrap();
        assert_eq!(mounted_within(&place), 0);
    });
}

#[test]
fn a_link_in_place_of_the_directory_is_not_followed() {
    apart(|top| {
        let place = top.join("mounted");
        tmpfs_on(&place);
        symlink(&place, top.join("rootfs")).unwrap();
        unmount_recursive(&top.join("rootfs"), PATIENCE).unwrap();
        assert_eq!(mounted_within(&place), 1);
        umount2(&place, MntFlags::empty()).unwrap();
    });
}
