use std::fs;

use proptest::prelude::*;

use super::*;

fn fixture(controllers: &[&str], contents: &[(&str, &str)]) -> (tempfile::TempDir, Layout) {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in contents {
        fs::write(directory.path().join(name), content).unwrap();
    }
    let layout = Layout::v1(controllers, directory.path());
    (directory, layout)
}

const ALL: [&str; 7] = ["cpu", "cpuacct", "memory", "pids", "blkio", "hugetlb", "rdma"];

/// As Linux writes them, with every counter that a message has room for.
const FILES: &[(&str, &str)] = &[
    ("pids.current", "3\n"),
    ("pids.max", "100\n"),
    ("cpuacct.usage", "987654321\n"),
    ("cpuacct.stat", "user 12\nsystem 34\n"),
    ("cpuacct.usage_percpu", "1 2 3 4 \n"),
    ("cpu.stat", "nr_periods 9\nnr_throttled 8\nthrottled_time 7\nnr_bursts 0\n"),
    ("memory.usage_in_bytes", "4096\n"),
    ("memory.limit_in_bytes", "9223372036854771712\n"),
    ("memory.max_usage_in_bytes", "8192\n"),
    ("memory.failcnt", "5\n"),
    ("memory.memsw.usage_in_bytes", "6\n"),
    ("memory.kmem.limit_in_bytes", "7\n"),
    ("memory.kmem.tcp.failcnt", "8\n"),
    ("memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 2\n"),
    (
        "memory.stat",
        "cache 1\nrss 2\nrss_huge 3\nshmem 99\nmapped_file 4\ndirty 5\nwriteback 6\nswap 99\n\
         pgpgin 7\npgpgout 8\npgfault 9\npgmajfault 10\ninactive_anon 11\nactive_anon 12\n\
         inactive_file 13\nactive_file 14\nunevictable 15\nhierarchical_memory_limit 16\n\
         hierarchical_memsw_limit 17\ntotal_cache 18\ntotal_rss 19\ntotal_rss_huge 20\n\
         total_mapped_file 21\ntotal_dirty 22\ntotal_writeback 23\ntotal_pgpgin 24\n\
         total_pgpgout 25\ntotal_pgfault 26\ntotal_pgmajfault 27\ntotal_inactive_anon 28\n\
         total_active_anon 29\ntotal_inactive_file 30\ntotal_active_file 31\n\
         total_unevictable 32\n",
    ),
    ("blkio.throttle.io_serviced_recursive", "8:0 Read 5\nTotal 5\n"),
    ("hugetlb.2MB.usage_in_bytes", "1\n"),
    ("hugetlb.2MB.max_usage_in_bytes", "2\n"),
    ("hugetlb.2MB.failcnt", "3\n"),
    ("rdma.current", "mlx4_0 hca_handle=2 hca_object=2000\n"),
    ("rdma.max", "mlx4_0 hca_handle=max hca_object=9\n"),
];

#[test]
fn every_file_finds_its_fields() {
    let (_directory, layout) = fixture(&ALL, FILES);
    let metrics = metrics(&layout);
    assert_eq!((metrics.pids.current, metrics.pids.limit), (3, 100));
    let usage = &metrics.cpu.usage;
    assert_eq!((usage.total, usage.user, usage.kernel), (987_654_321, 120_000_000, 340_000_000));
    assert_eq!(usage.per_cpu, [1, 2, 3, 4]);
    let throttling = &metrics.cpu.throttling;
    assert_eq!((throttling.periods, throttling.throttled_periods), (9, 8));
    assert_eq!(throttling.throttled_time, 7);
    let memory = &metrics.memory;
    let usage = &memory.usage;
    assert_eq!((usage.usage, usage.max, usage.failcnt), (4096, 8192, 5));
    assert_eq!(usage.limit, 9_223_372_036_854_771_712);
    assert_eq!(memory.swap.usage, 6);
    assert_eq!(memory.kernel.limit, 7);
    assert_eq!(memory.kernel_tcp.failcnt, 8);
    let control = &metrics.memory_oom_control;
    assert_eq!((control.oom_kill_disable, control.under_oom, control.oom_kill), (1, 0, 2));
    assert_eq!(metrics.blkio.io_serviced_recursive[0].value, 5);
    let huge = &metrics.hugetlb[0];
    assert_eq!((&*huge.pagesize, huge.usage, huge.max, huge.failcnt), ("2MB", 1, 2, 3));
    assert_eq!(metrics.rdma.current[0].hca_handles, 2);
    assert_eq!(metrics.rdma.limit[0].hca_handles, u32::MAX);
}

#[test]
fn every_memory_counter_lands_in_its_own_field() {
    let (_directory, layout) = fixture(&["memory"], FILES);
    let m = metrics(&layout).memory.unwrap();
    let own = [m.cache, m.rss, m.rss_huge, m.mapped_file, m.dirty, m.writeback, m.pg_pg_in];
    let own2 = [m.pg_pg_out, m.pg_fault, m.pg_maj_fault, m.inactive_anon, m.active_anon];
    let own3 = [m.inactive_file, m.active_file, m.unevictable];
    let limits = [m.hierarchical_memory_limit, m.hierarchical_swap_limit];
    let total = [m.total_cache, m.total_rss, m.total_rss_huge, m.total_mapped_file, m.total_dirty];
    let total2 = [m.total_writeback, m.total_pg_pg_in, m.total_pg_pg_out, m.total_pg_fault];
    let total3 = [m.total_pg_maj_fault, m.total_inactive_anon, m.total_active_anon];
    let total4 = [m.total_inactive_file, m.total_active_file, m.total_unevictable];
    let all: [&[u64]; 8] = [&own, &own2, &own3, &limits, &total, &total2, &total3, &total4];
    assert_eq!(all.concat(), (1..=32).collect::<Vec<u64>>());
}

#[test]
fn no_limit_of_processes_is_zero() {
    let (_directory, layout) = fixture(&["pids"], &[("pids.max", "max\n")]);
    assert_eq!(metrics(&layout).pids.limit, 0);
}

#[test]
fn controllers_that_are_not_mounted_are_left_out() {
    let (_directory, layout) = fixture(&["pids"], FILES);
    let metrics = metrics(&layout);
    assert!(metrics.pids.is_some());
    assert!(metrics.memory.is_none() && metrics.memory_oom_control.is_none());
    assert!(metrics.blkio.is_none() && metrics.rdma.is_none() && metrics.hugetlb.is_empty());
    assert!(metrics.cpu.usage.is_some() && metrics.cpu.throttling.is_some());
}

#[test]
fn a_controllers_directory_may_be_gone() {
    let (directory, _) = fixture(&[], FILES);
    let gone = directory.path().join("gone");
    let groups = [(&["pids"], directory.path()), (&["memory"], &gone)].map(|(controllers, dir)| {
        let Layout::V1(groups) = Layout::v1(controllers, dir) else { unreachable!("it is v1") };
        groups
    });
    let metrics = metrics(&Layout::V1(groups.concat()));
    assert_eq!(metrics.pids.current, 3);
    assert_eq!(metrics.memory.usage.usage, 0);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let directory = tempfile::tempdir().unwrap();
        for (name, _) in FILES {
            fs::write(directory.path().join(name), &text).unwrap();
        }
        let _ = metrics(&Layout::v1(&ALL, directory.path()));
    }
}
