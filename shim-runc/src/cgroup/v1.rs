//! Metrics of a container's cgroups in the v1 hierarchies.

use protobuf::MessageField;
use runtime_proto::metrics::v1::{
    CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl, MemoryStat, Metrics, PidsStat,
    RdmaEntry, RdmaStat, Throttle,
};

use super::files::Files;
use super::layout::Layout;
use super::{blkio, rdma, text};

/// Nanoseconds in the unit of `cpuacct.stat`: USER_HZ is 100 in the kernel's interface to user
/// space, on every architecture, whatever the timer's frequency is.
const NANOS_PER_TICK: u64 = 1_000_000_000 / 100;

/// Everything that the kernel says about the cgroups of `layout`.
pub(super) fn metrics(layout: &Layout) -> Metrics {
    let files = |controller: &str| layout.controller(controller).map(Files::of);
    let mut metrics = Metrics::new();
    metrics.cpu = MessageField::some(CPUStat {
        // Clients reach through these two without asking whether they are set.
        usage: MessageField::some(files("cpuacct").as_mut().map(cpu_usage).unwrap_or_default()),
        throttling: MessageField::some(files("cpu").as_mut().map(throttle).unwrap_or_default()),
        ..CPUStat::new()
    });
    metrics.pids = files("pids").as_mut().map(pids).into();
    if let Some(files) = &mut files("memory") {
        metrics.memory = MessageField::some(memory(files));
        metrics.memory_oom_control = MessageField::some(oom_control(files));
    }
    metrics.blkio = files("blkio").as_mut().map(blkio::stat).into();
    metrics.hugetlb = files("hugetlb").as_mut().map(hugetlb).unwrap_or_default();
    metrics.rdma = files("rdma").as_mut().map(rdma_stat).into();
    metrics
}

fn pids(files: &mut Files) -> PidsStat {
    PidsStat {
        current: files.number("pids.current"),
        // In this version of the message no limit is 0.
        limit: files.number("pids.max"),
        ..PidsStat::new()
    }
}

fn cpu_usage(files: &mut Files) -> CPUUsage {
    let mut usage = CPUUsage::new();
    usage.total = files.number("cpuacct.usage");
    for (key, ticks) in text::flat_keyed(files.read("cpuacct.stat")) {
        match key {
            b"user" => usage.user = ticks.saturating_mul(NANOS_PER_TICK),
            b"system" => usage.kernel = ticks.saturating_mul(NANOS_PER_TICK),
            _ => {}
        }
    }
    usage.per_cpu =
        text::words(files.read("cpuacct.usage_percpu")).filter_map(text::number).collect();
    usage
}

fn throttle(files: &mut Files) -> Throttle {
    let mut throttle = Throttle::new();
    for (key, value) in text::flat_keyed(files.read("cpu.stat")) {
        match key {
            b"nr_periods" => throttle.periods = value,
            b"nr_throttled" => throttle.throttled_periods = value,
            b"throttled_time" => throttle.throttled_time = value,
            _ => {}
        }
    }
    throttle
}

fn memory(files: &mut Files) -> MemoryStat {
    let mut memory = memory_stat(files.read("memory.stat"));
    memory.usage = MessageField::some(memory_entry(files, "memory"));
    memory.swap = MessageField::some(memory_entry(files, "memory.memsw"));
    memory.kernel = MessageField::some(memory_entry(files, "memory.kmem"));
    memory.kernel_tcp = MessageField::some(memory_entry(files, "memory.kmem.tcp"));
    memory
}

fn memory_entry(files: &mut Files, kind: &str) -> MemoryEntry {
    MemoryEntry {
        limit: files.number(&format!("{kind}.limit_in_bytes")),
        usage: files.number(&format!("{kind}.usage_in_bytes")),
        max: files.number(&format!("{kind}.max_usage_in_bytes")),
        failcnt: files.number(&format!("{kind}.failcnt")),
        ..MemoryEntry::new()
    }
}

pub(crate) fn memory_stat(content: &[u8]) -> MemoryStat {
    let mut memory = MemoryStat::new();
    for (key, value) in text::flat_keyed(content) {
        match key {
            b"cache" => memory.cache = value,
            b"rss" => memory.rss = value,
            b"rss_huge" => memory.rss_huge = value,
            b"mapped_file" => memory.mapped_file = value,
            b"dirty" => memory.dirty = value,
            b"writeback" => memory.writeback = value,
            b"pgpgin" => memory.pg_pg_in = value,
            b"pgpgout" => memory.pg_pg_out = value,
            b"pgfault" => memory.pg_fault = value,
            b"pgmajfault" => memory.pg_maj_fault = value,
            b"inactive_anon" => memory.inactive_anon = value,
            b"active_anon" => memory.active_anon = value,
            b"inactive_file" => memory.inactive_file = value,
            b"active_file" => memory.active_file = value,
            b"unevictable" => memory.unevictable = value,
            b"hierarchical_memory_limit" => memory.hierarchical_memory_limit = value,
            b"hierarchical_memsw_limit" => memory.hierarchical_swap_limit = value,
            b"total_cache" => memory.total_cache = value,
            b"total_rss" => memory.total_rss = value,
            b"total_rss_huge" => memory.total_rss_huge = value,
            b"total_mapped_file" => memory.total_mapped_file = value,
            b"total_dirty" => memory.total_dirty = value,
            b"total_writeback" => memory.total_writeback = value,
            b"total_pgpgin" => memory.total_pg_pg_in = value,
            b"total_pgpgout" => memory.total_pg_pg_out = value,
            b"total_pgfault" => memory.total_pg_fault = value,
            b"total_pgmajfault" => memory.total_pg_maj_fault = value,
            b"total_inactive_anon" => memory.total_inactive_anon = value,
            b"total_active_anon" => memory.total_active_anon = value,
            b"total_inactive_file" => memory.total_inactive_file = value,
            b"total_active_file" => memory.total_active_file = value,
            b"total_unevictable" => memory.total_unevictable = value,
            _ => {}
        }
    }
    memory
}

fn oom_control(files: &mut Files) -> MemoryOomControl {
    let mut control = MemoryOomControl::new();
    for (key, value) in text::flat_keyed(files.read("memory.oom_control")) {
        match key {
            b"oom_kill_disable" => control.oom_kill_disable = value,
            b"under_oom" => control.under_oom = value,
            b"oom_kill" => control.oom_kill = value,
            _ => {}
        }
    }
    control
}

fn hugetlb(files: &mut Files) -> Vec<HugetlbStat> {
    let sizes = files.hugetlb_sizes(".usage_in_bytes");
    let stat = |pagesize: String| HugetlbStat {
        usage: files.number(&format!("hugetlb.{pagesize}.usage_in_bytes")),
        max: files.number(&format!("hugetlb.{pagesize}.max_usage_in_bytes")),
        failcnt: files.number(&format!("hugetlb.{pagesize}.failcnt")),
        pagesize,
        ..HugetlbStat::new()
    };
    sizes.into_iter().map(stat).collect()
}

fn rdma_stat(files: &mut Files) -> RdmaStat {
    let convert = |(device, handles, objects): (&str, u32, u32)| RdmaEntry {
        device: device.to_owned(),
        hca_handles: handles,
        hca_objects: objects,
        ..RdmaEntry::new()
    };
    RdmaStat {
        current: rdma::entries(files.read("rdma.current")).map(convert).collect(),
        limit: rdma::entries(files.read("rdma.max")).map(convert).collect(),
        ..RdmaStat::new()
    }
}

#[cfg(test)]
mod tests;
