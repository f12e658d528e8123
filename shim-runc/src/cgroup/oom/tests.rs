use super::*;

fn told(kills: u64) -> OomWatch {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
    let event = watch(event, Interest::READABLE).unwrap();
    let source = Source::V1 { directory: PathBuf::new(), event };
    OomWatch { source, told: AtomicU64::new(kills), counts: true }
}

#[tokio::test]
async fn growth_is_told_once() {
    let watch = told(2);
    assert!(!watch.claim(2));
    assert!(watch.claim(3));
    assert!(!watch.claim(3));
    assert!(watch.claim(7), "several kills between two looks are one report");
    assert!(!watch.claim(4), "cgroups below were removed");
    assert!(watch.claim(5), "and one more kill is still seen");
}

#[test]
fn v1_kills_of_cgroups_below_count() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("a/b");
    fs::create_dir_all(&below).unwrap();
    let write = |directory: &Path, kills: u64| {
        let control = format!("oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n");
        fs::write(directory.join("memory.oom_control"), control).unwrap();
    };
    write(directory.path(), 1);
    write(&below, 2);
    assert_eq!(v1_kills(directory.path()).unwrap(), Some(3));
    fs::write(directory.path().join("memory.oom_control"), "under_oom 0\n").unwrap();
    assert_eq!(v1_kills(directory.path()).unwrap(), None, "an old kernel does not count");
    assert!(v1_kills(&directory.path().join("gone")).is_err());
}
