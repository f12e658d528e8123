//! Overlays, and mounts with mapped ids.

use std::os::unix::fs::MetadataExt;

use super::*;

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

/// Like [`apart`], on a filesystem that can have its ids mapped for as long as there is a call for
/// that (tmpfs can only since Linux 6.3).
fn apart_with_ids(test: impl FnOnce(&Path) + Send + 'static) {
    apart(|top| {
        let Some(image) = devices::image(top) else { return };
        let disk = top.join("disk");
        fs::create_dir(&disk).unwrap();
        let _guard = make_all(&disk, &[mount_of("ext4", image, &["loop"])]).unwrap();
        test(&disk);
    });
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
