use proptest::prelude::*;

use super::*;

fn parse(data: &[&str]) -> Layers {
    Layers::parse(&data.iter().map(|&option| option.to_owned()).collect::<Vec<_>>())
}

#[test]
fn layers_are_taken_out_of_the_options() {
    let layers = parse(&["index=off", "lowerdir=/a:/b", "upperdir=/u", "workdir=/w", "volatile"]);
    assert_eq!(layers.lower, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(layers.upper.as_deref(), Some(Path::new("/u")));
    assert_eq!(layers.work.as_deref(), Some(Path::new("/w")));
    assert_eq!(layers.rest, ["index=off", "volatile"]);
}

#[test]
fn escaped_colons_belong_to_the_path() {
    let layers = parse(&[r"lowerdir=/a\:b:/c\\d:/e\,f"]);
    assert_eq!(layers.lower, [Path::new("/a:b"), Path::new(r"/c\d"), Path::new("/e,f")]);
}

#[test]
fn layers_after_two_colons_hold_data_only() {
    let layers = parse(&["lowerdir=/a:/b::/c::/d"]);
    assert_eq!(layers.lower, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(layers.data_only, [Path::new("/c"), Path::new("/d")]);
}

#[test]
fn data_fits_up_to_a_page_with_its_last_byte_zero() {
    let page = usize::try_from(sysconf(SysconfVar::PAGE_SIZE).unwrap().unwrap()).unwrap();
    assert!(fits(&[]));
    assert!(fits(&["x".repeat(page - 1)]));
    assert!(!fits(&["x".repeat(page)]));
    assert!(!fits(&["x".repeat(page - 2), "y".into()]), "the comma counts");
}

#[test]
fn access_time_is_one_choice() {
    let both = MsFlags::MS_NOATIME | MsFlags::MS_NODEV;
    assert_eq!(attributes(both), libc::MOUNT_ATTR_NOATIME | libc::MOUNT_ATTR_NODEV);
    assert_eq!(attributes(MsFlags::MS_RELATIME), 0);
    let strict = MsFlags::MS_STRICTATIME | MsFlags::MS_RDONLY;
    assert_eq!(attributes(strict), libc::MOUNT_ATTR_STRICTATIME | libc::MOUNT_ATTR_RDONLY);
}

proptest! {
    #[test]
    fn any_layers_are_survived(paths in ".{0,40}") {
        let layers = parse(&[&format!("lowerdir={paths}")]);
        prop_assert!(layers.lower.iter().all(|path| !path.as_os_str().is_empty()));
    }

    #[test]
    fn escaped_paths_come_back(paths in proptest::collection::vec("/[a-z:\\\\,]{1,8}", 1..5)) {
        let escape = |path: &String| path.replace('\\', r"\\").replace(':', r"\:");
        let escaped: Vec<_> = paths.iter().map(escape).collect();
        let layers = parse(&[&format!("lowerdir={}", escaped.join(":"))]);
        prop_assert_eq!(layers.lower, paths.iter().map(PathBuf::from).collect::<Vec<_>>());
    }
}
