//! Metrics of a cgroup in the unified hierarchy.

use std::path::Path;

use protobuf::MessageField;
use runtime_proto::metrics::v2::{
    CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PSIData, PSIStats,
    PidsStat, RdmaEntry, RdmaStat,
};

use super::files::Files;
use super::{rdma, text};

/// Everything that the kernel says about the cgroup in `directory`.
pub(super) fn metrics(directory: &Path) -> Metrics {
    let files = &mut Files::of(directory);
    // Clients reach through these without asking whether they are set.
    let mut metrics = Metrics::new();
    metrics.pids = MessageField::some(pids(files));
    metrics.cpu = MessageField::some(cpu(files));
    metrics.memory = MessageField::some(memory(files));
    metrics.memory_events = MessageField::some(memory_events(files.read("memory.events")));
    metrics.io = MessageField::some(io(files));
    metrics.rdma = MessageField::some(RdmaStat {
        current: rdma_entries(files.read("rdma.current")),
        limit: rdma_entries(files.read("rdma.max")),
        ..RdmaStat::new()
    });
    metrics.hugetlb = hugetlb(files);
    metrics
}

fn pids(files: &mut Files) -> PidsStat {
    PidsStat {
        current: files.number("pids.current"),
        limit: files.limit("pids.max"),
        ..PidsStat::new()
    }
}

fn cpu(files: &mut Files) -> CPUStat {
    let mut cpu = CPUStat::new();
    for (key, value) in text::flat_keyed(files.read("cpu.stat")) {
        match key {
            b"usage_usec" => cpu.usage_usec = value,
            b"user_usec" => cpu.user_usec = value,
            b"system_usec" => cpu.system_usec = value,
            b"nr_periods" => cpu.nr_periods = value,
            b"nr_throttled" => cpu.nr_throttled = value,
            b"throttled_usec" => cpu.throttled_usec = value,
            b"nr_bursts" => cpu.nr_bursts = value,
            b"burst_usec" => cpu.burst_usec = value,
            _ => {}
        }
    }
    cpu.psi = pressure(files.read("cpu.pressure")).into();
    cpu
}

fn memory(files: &mut Files) -> MemoryStat {
    let mut memory = memory_stat(files.read("memory.stat"));
    memory.usage = files.number("memory.current");
    memory.usage_limit = files.limit("memory.max");
    memory.max_usage = files.number("memory.peak");
    memory.swap_usage = files.number("memory.swap.current");
    memory.swap_limit = files.limit("memory.swap.max");
    memory.swap_max_usage = files.number("memory.swap.peak");
    memory.psi = pressure(files.read("memory.pressure")).into();
    memory
}

pub(crate) fn memory_stat(content: &[u8]) -> MemoryStat {
    let mut memory = MemoryStat::new();
    for (key, value) in text::flat_keyed(content) {
        match key {
            b"anon" => memory.anon = value,
            b"file" => memory.file = value,
            b"kernel_stack" => memory.kernel_stack = value,
            b"slab" => memory.slab = value,
            b"sock" => memory.sock = value,
            b"shmem" => memory.shmem = value,
            b"file_mapped" => memory.file_mapped = value,
            b"file_dirty" => memory.file_dirty = value,
            b"file_writeback" => memory.file_writeback = value,
            b"anon_thp" => memory.anon_thp = value,
            b"inactive_anon" => memory.inactive_anon = value,
            b"active_anon" => memory.active_anon = value,
            b"inactive_file" => memory.inactive_file = value,
            b"active_file" => memory.active_file = value,
            b"unevictable" => memory.unevictable = value,
            b"slab_reclaimable" => memory.slab_reclaimable = value,
            b"slab_unreclaimable" => memory.slab_unreclaimable = value,
            b"pgfault" => memory.pgfault = value,
            b"pgmajfault" => memory.pgmajfault = value,
            // One counter until Linux 5.9, then one for each kind of page.
            b"workingset_refault" | b"workingset_refault_anon" | b"workingset_refault_file" => {
                memory.workingset_refault = memory.workingset_refault.saturating_add(value);
            }
            b"workingset_activate" | b"workingset_activate_anon" | b"workingset_activate_file" => {
                memory.workingset_activate = memory.workingset_activate.saturating_add(value);
            }
            b"workingset_nodereclaim" => memory.workingset_nodereclaim = value,
            b"pgrefill" => memory.pgrefill = value,
            b"pgscan" => memory.pgscan = value,
            b"pgsteal" => memory.pgsteal = value,
            b"pgactivate" => memory.pgactivate = value,
            b"pgdeactivate" => memory.pgdeactivate = value,
            b"pglazyfree" => memory.pglazyfree = value,
            b"pglazyfreed" => memory.pglazyfreed = value,
            b"thp_fault_alloc" => memory.thp_fault_alloc = value,
            b"thp_collapse_alloc" => memory.thp_collapse_alloc = value,
            _ => {}
        }
    }
    memory
}

pub(crate) fn memory_events(content: &[u8]) -> MemoryEvents {
    let mut events = MemoryEvents::new();
    for (key, value) in text::flat_keyed(content) {
        match key {
            b"low" => events.low = value,
            b"high" => events.high = value,
            b"max" => events.max = value,
            b"oom" => events.oom = value,
            b"oom_kill" => events.oom_kill = value,
            b"oom_group_kill" => events.oom_group_kill = value,
            _ => {}
        }
    }
    events
}

fn io(files: &mut Files) -> IOStat {
    let usage = text::lines(files.read("io.stat")).filter_map(io_entry).collect();
    IOStat { usage, psi: pressure(files.read("io.pressure")).into(), ..IOStat::new() }
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`; a device alone has nothing to tell.
pub(crate) fn io_entry(line: &[u8]) -> Option<IOEntry> {
    let mut words = text::words(line);
    let (major, minor) = text::device(words.next()?)?;
    let mut entry = IOEntry { major, minor, ..IOEntry::new() };
    let mut told = false;
    for (key, value) in words.filter_map(text::assignment) {
        let Some(value) = text::number(value) else { continue };
        told = true;
        match key {
            b"rbytes" => entry.rbytes = value,
            b"wbytes" => entry.wbytes = value,
            b"rios" => entry.rios = value,
            b"wios" => entry.wios = value,
            _ => {}
        }
    }
    told.then_some(entry)
}

/// `some avg10=0.12 avg60=0.00 avg300=0.00 total=34`, and the same for `full`.
pub(crate) fn pressure(content: &[u8]) -> Option<PSIStats> {
    let mut stats = PSIStats::new();
    for line in text::lines(content) {
        let mut words = text::words(line);
        let kind = words.next();
        let mut data = PSIData::new();
        for (key, value) in words.filter_map(text::assignment) {
            match key {
                b"avg10" => data.avg10 = average(value),
                b"avg60" => data.avg60 = average(value),
                b"avg300" => data.avg300 = average(value),
                b"total" => data.total = text::number(value).unwrap_or(0),
                _ => {}
            }
        }
        match kind {
            Some(b"some") => stats.some = MessageField::some(data),
            Some(b"full") => stats.full = MessageField::some(data),
            _ => {}
        }
    }
    (stats.some.is_some() || stats.full.is_some()).then_some(stats)
}

fn average(word: &[u8]) -> f64 {
    let parsed = str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    parsed.filter(|average: &f64| average.is_finite()).unwrap_or(0.0)
}

fn rdma_entries(content: &[u8]) -> Vec<RdmaEntry> {
    let convert = |(device, handles, objects): (&str, u32, u32)| RdmaEntry {
        device: device.to_owned(),
        hca_handles: handles,
        hca_objects: objects,
        ..RdmaEntry::new()
    };
    rdma::entries(content).map(convert).collect()
}

fn hugetlb(files: &mut Files) -> Vec<HugeTlbStat> {
    let sizes = files.hugetlb_sizes(".current");
    let stat = |pagesize: String| HugeTlbStat {
        current: files.number(&format!("hugetlb.{pagesize}.current")),
        max: files.limit(&format!("hugetlb.{pagesize}.max")),
        failcnt: text::value_of(files.read(&format!("hugetlb.{pagesize}.events")), b"max")
            .unwrap_or(0),
        pagesize,
        ..HugeTlbStat::new()
    };
    sizes.into_iter().map(stat).collect()
}

#[cfg(test)]
mod tests;
