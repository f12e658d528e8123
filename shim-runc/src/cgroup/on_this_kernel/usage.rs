//! Finding a cgroup and measuring it.

use std::time::Duration;

use runtime_proto::errdefs::Code;
use runtime_proto::metrics::{v1, v2};

use super::*;

#[test]
fn the_cgroup_of_a_process_is_found_and_measured() {
    let Some(fresh) = Fresh::new("stats") else { return };
    // What it takes before it is moved is not charged here.
    let shell = fresh.run("x=$(dd if=/dev/zero bs=1M count=1 | tr '\\0' x); while :; do :; done");
    while fresh.file("pids", "pids.current") == "0" {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It joins one hierarchy after the other.
    let found = loop {
        let found = Cgroup::of_pid(shell.pid()).unwrap();
        if found.layout() == fresh.cgroup.layout() {
            break found;
        }
    };
    while cpu_time(&found) == 0 || memory_usage(&found) == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stats = found.stats().unwrap();
    if found.is_unified() {
        let metrics: v2::Metrics = any::unpack(&stats).unwrap().expect("v2 metrics");
        assert!(metrics.pids.current > 0);
        assert_eq!(metrics.memory.usage_limit, u64::MAX);
    } else {
        let metrics: v1::Metrics = any::unpack(&stats).unwrap().expect("v1 metrics");
        assert!(metrics.pids.current > 0);
        let limit = fresh.file("memory", "memory.limit_in_bytes");
        assert_eq!(metrics.memory.usage.limit.to_string(), limit);
        assert!(metrics.cpu.usage.per_cpu.iter().sum::<u64>() > 0);
    }
}

fn memory_usage(cgroup: &Cgroup) -> u64 {
    let stats = cgroup.stats().unwrap();
    match cgroup.is_unified() {
        true => any::unpack::<v2::Metrics>(&stats).unwrap().unwrap().memory.usage,
        false => any::unpack::<v1::Metrics>(&stats).unwrap().unwrap().memory.usage.usage,
    }
}

fn cpu_time(cgroup: &Cgroup) -> u64 {
    let stats = cgroup.stats().unwrap();
    match cgroup.is_unified() {
        true => any::unpack::<v2::Metrics>(&stats).unwrap().unwrap().cpu.usage_usec,
        false => any::unpack::<v1::Metrics>(&stats).unwrap().unwrap().cpu.usage.total,
    }
}

#[test]
fn a_removed_cgroup_is_not_found() {
    let Some(fresh) = Fresh::new("gone") else { return };
    let cgroup = fresh.cgroup.clone();
    drop(fresh);
    assert_eq!(cgroup.stats().unwrap_err().kind(), Code::NotFound);
    assert_eq!(cgroup.freezer_state().unwrap_err().kind(), Code::NotFound);
    cgroup.enable_controllers();
}
