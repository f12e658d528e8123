use std::fs;

use proptest::prelude::*;

use super::*;

fn fixture(contents: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in contents {
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

/// As Linux 6.1 writes them, with every counter that a message has room for.
const FILES: &[(&str, &str)] = &[
    ("pids.current", "3\n"),
    ("pids.max", "max\n"),
    (
        "cpu.stat",
        "usage_usec 100\nuser_usec 60\nsystem_usec 40\nnr_periods 9\nnr_throttled 8\n\
         throttled_usec 7\nnr_bursts 6\nburst_usec 5\n",
    ),
    (
        "cpu.pressure",
        "some avg10=1.50 avg60=0.25 avg300=0.00 total=123\n\
         full avg10=0.00 avg60=0.00 avg300=0.10 total=4\n",
    ),
    ("memory.current", "1048576\n"),
    ("memory.max", "16777216\n"),
    ("memory.peak", "2097152\n"),
    ("memory.swap.current", "0\n"),
    ("memory.swap.max", "max\n"),
    (
        "memory.stat",
        "anon 1\nfile 2\nkernel 99\nkernel_stack 3\nsock 5\nshmem 6\nfile_mapped 7\nfile_dirty 8\n\
         file_writeback 9\nanon_thp 10\ninactive_anon 11\nactive_anon 12\ninactive_file 13\n\
         active_file 14\nunevictable 15\nslab_reclaimable 16\nslab_unreclaimable 17\nslab 4\n\
         workingset_refault_anon 20\nworkingset_refault_file 1\nworkingset_activate_anon 2\n\
         workingset_activate_file 20\nworkingset_nodereclaim 23\npgscan 26\npgsteal 27\n\
         pgfault 18\npgmajfault 19\npgrefill 24\npgactivate 28\npgdeactivate 29\npglazyfree 30\n\
         pglazyfreed 31\nthp_fault_alloc 32\nthp_collapse_alloc 33\n",
    ),
    ("memory.events", "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n"),
    (
        "io.stat",
        "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n7:0 \n259:1 rbytes=9 odd rios=x\n",
    ),
    ("rdma.current", "mlx4_0 hca_handle=2 hca_object=2000\n"),
    ("rdma.max", "mlx4_0 hca_handle=max hca_object=max\n"),
    ("hugetlb.2MB.current", "4194304\n"),
    ("hugetlb.2MB.max", "max\n"),
    ("hugetlb.2MB.events", "max 7\n"),
    ("hugetlb.2MB.rsvd.current", "1\n"),
];

#[test]
fn every_file_finds_its_fields() {
    let directory = fixture(FILES);
    let metrics = metrics(directory.path());
    assert_eq!((metrics.pids.current, metrics.pids.limit), (3, u64::MAX));
    let cpu = &metrics.cpu;
    assert_eq!((cpu.usage_usec, cpu.user_usec, cpu.system_usec), (100, 60, 40));
    assert_eq!((cpu.nr_periods, cpu.nr_throttled, cpu.throttled_usec), (9, 8, 7));
    assert_eq!((cpu.nr_bursts, cpu.burst_usec), (6, 5));
    assert!((cpu.psi.some.avg10 - 1.5).abs() < 1e-9);
    assert!((cpu.psi.full.avg300 - 0.1).abs() < 1e-9);
    assert_eq!((cpu.psi.some.total, cpu.psi.full.total), (123, 4));
    let memory = &metrics.memory;
    assert_eq!((memory.usage, memory.usage_limit, memory.max_usage), (1 << 20, 16 << 20, 2 << 20));
    assert_eq!((memory.swap_usage, memory.swap_limit), (0, u64::MAX));
    assert!(memory.psi.is_none(), "there is no such file");
    let events = &metrics.memory_events;
    assert_eq!((events.low, events.high, events.max), (1, 2, 3));
    assert_eq!((events.oom, events.oom_kill, events.oom_group_kill), (4, 5, 6));
    let io: Vec<_> =
        metrics.io.usage.iter().map(|e| (e.major, e.minor, e.rbytes, e.wios)).collect();
    assert_eq!(io, [(8, 16, 1, 4), (259, 1, 9, 0)]);
    assert_eq!(metrics.rdma.current[0].hca_objects, 2000);
    assert_eq!(metrics.rdma.limit[0].hca_handles, u32::MAX);
    assert_eq!(metrics.hugetlb.len(), 1);
    let huge = &metrics.hugetlb[0];
    assert_eq!((&*huge.pagesize, huge.current, huge.max), ("2MB", 4 << 20, u64::MAX));
    assert_eq!(huge.failcnt, 7);
}

#[test]
fn every_memory_counter_lands_in_its_own_field() {
    let directory = fixture(FILES);
    let m = metrics(directory.path()).memory.unwrap();
    let fields = [
        [m.anon, m.file, m.kernel_stack, m.slab, m.sock, m.shmem, m.file_mapped, m.file_dirty],
        [m.file_writeback, m.anon_thp, m.inactive_anon, m.active_anon, m.inactive_file]
            .into_iter()
            .chain([m.active_file, m.unevictable, m.slab_reclaimable])
            .collect::<Vec<_>>()
            .try_into()
            .unwrap(),
    ];
    assert_eq!(fields.concat(), (1..=16).collect::<Vec<u64>>());
    let fields = [m.slab_unreclaimable, m.pgfault, m.pgmajfault];
    assert_eq!(fields, [17, 18, 19]);
    assert_eq!((m.workingset_refault, m.workingset_activate), (21, 22), "sums of both kinds");
    let fields = [m.workingset_nodereclaim, m.pgrefill, m.pgscan, m.pgsteal, m.pgactivate];
    assert_eq!(fields, [23, 24, 26, 27, 28]);
    let fields = [m.pgdeactivate, m.pglazyfree, m.pglazyfreed, m.thp_fault_alloc];
    assert_eq!(fields, [29, 30, 31, 32]);
    assert_eq!(m.thp_collapse_alloc, 33);
}

#[test]
fn refaults_of_older_kernels_are_one_counter() {
    let stat = memory_stat(b"workingset_refault 7\nworkingset_activate 8\n");
    assert_eq!((stat.workingset_refault, stat.workingset_activate), (7, 8));
}

#[test]
fn an_empty_cgroup_still_has_every_message() {
    let directory = fixture(&[]);
    let metrics = metrics(directory.path());
    assert!(metrics.pids.is_some() && metrics.cpu.is_some() && metrics.memory.is_some());
    assert!(metrics.memory_events.is_some() && metrics.io.is_some() && metrics.rdma.is_some());
    assert!(metrics.cpu.psi.is_none() && metrics.hugetlb.is_empty());
}

#[test]
fn one_bad_file_leaves_the_others() {
    let directory = fixture(FILES);
    fs::remove_file(directory.path().join("cpu.stat")).unwrap();
    fs::create_dir(directory.path().join("cpu.stat")).unwrap();
    fs::write(directory.path().join("memory.stat"), b"\xff\xfe\nanon 1").unwrap();
    let metrics = metrics(directory.path());
    assert_eq!(metrics.cpu.usage_usec, 0);
    assert_eq!(metrics.memory.anon, 1);
    assert_eq!(metrics.pids.current, 3);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = (memory_stat(&text), memory_events(&text), io_entry(&text), rdma_entries(&text));
        if let Some(stats) = pressure(&text) {
            prop_assert!(stats.some.avg10.is_finite() && stats.full.avg300.is_finite());
        }
    }

    #[test]
    fn any_pressure_line_is_survived(average in "[0-9a-zA-Z.+-]{0,12}", total: u64) {
        let line = format!("some avg10={average} avg60=inf avg300=NaN total={total}\n");
        let stats = pressure(line.as_bytes()).unwrap();
        prop_assert!(stats.some.avg10.is_finite());
        prop_assert_eq!(stats.some.avg60.to_bits(), 0);
        prop_assert_eq!(stats.some.total, total);
    }
}
