//! Every place of this shim that reads bytes which somebody else wrote, as one list.
//!
//! A manager, a client, an OCI runtime, a kernel of another age or a crash in the middle of a write
//! may hand anything to these readers. The fuzzer in `fuzz/` and the test `tests/foreign_bytes.rs`
//! drive this list and nothing else, so a reader that is on it is covered by both. It is part of
//! the library because most readers are private; no code of the shim calls it, so the binary does
//! not contain it.
//!
//! A reader refuses or accepts; it never panics. Where more than that is a law, the function that
//! calls it panics when the law is broken.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Component, Path},
    pin::pin,
    str,
    task::{Context, Poll, Waker},
    time::SystemTime,
};

use protobuf::{CodedOutputStream, Message};
use runtime_proto::{
    any::{self, Named},
    bootstrap::{Bootstrap, StartInput},
    frame::{self, Header},
    options::{OptionsMessage, RuntimeOptions},
    task::{CreateTaskRequest, ExecProcessRequest},
    ttrpc::Response,
    types::Any,
};

use crate::{
    boot::{args::Args, probe, socket},
    cgroup::{blkio, freezer, join, layout, membership, oom_score, rdma, v1, v2},
    container::{exec, resources},
    io::{
        plan::Plan,
        uri::{LoggingUri, Target},
    },
    mount::{id_map, mountinfo::Entry, options::Options, overlay::Layers},
    process::parse_pid,
    reaper::Exit,
    rpc::{
        message::{self, Incoming},
        server,
    },
    runc::{error, log, options::RuncOptions, verbs},
    service::convert,
    spec::Spec,
};

/// One reader of foreign bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// Its name; that of the directory with its seeds, too.
    pub name: &'static str,
    /// Reads, and panics when a law is broken.
    pub read: fn(&[u8]),
}

/// All of them.
pub const READERS: &[Reader] = &[
    Reader { name: "cgroup-files", read: cgroup_files },
    Reader { name: "cgroup-of-process", read: cgroup_of_process },
    Reader { name: "cgroup-path", read: cgroup_path },
    Reader { name: "command-line", read: command_line },
    Reader { name: "config-json", read: config_json },
    Reader { name: "exec-spec", read: exec_spec },
    Reader { name: "mount-options", read: mount_options },
    Reader { name: "mountinfo", read: mountinfo },
    Reader { name: "options-file", read: options_file },
    Reader { name: "pid-file", read: pid_file },
    Reader { name: "runtime-log", read: runtime_log },
    Reader { name: "runtime-options", read: runtime_options },
    Reader { name: "runtime-ps", read: runtime_ps },
    Reader { name: "start-answer", read: start_answer },
    Reader { name: "start-stdin", read: start_stdin },
    Reader { name: "stdio-uri", read: stdio_uri },
    Reader { name: "task-request", read: task_request },
    Reader { name: "ttrpc", read: ttrpc },
];

/// The shim that readers of `start` believe to be in.
const NAMESPACE: &str = "ns";
const ID: &str = "c1";
const ENCODES: &str = "what was decoded can be encoded";

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n')
}

/// A path that names something below whatever it is joined to.
fn is_below(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn start_stdin(bytes: &[u8]) {
    let read = |bytes: &[u8]| StartInput::decode(bytes, NAMESPACE, ID);
    let Ok(input) = read(bytes) else { return };
    let again = match &input {
        StartInput::Nothing => Vec::new(),
        StartInput::Options(any) => {
            let _ = RuncOptions::sent(Some(any));
            any.write_to_bytes().expect(ENCODES)
        }
        StartInput::Params(params) => {
            assert_eq!((&*params.namespace, &*params.instance_id), (NAMESPACE, ID));
            for any in params.extensions.iter().filter_map(|extension| extension.value.as_ref()) {
                let _ = RuncOptions::sent(Some(any));
            }
            params.write_to_bytes().expect(ENCODES)
        }
    };
    assert!(read(&again).is_ok_and(|read| read == input), "read differently the second time");
}

/// What a shim of another make answers; the tools of a node read it.
fn start_answer(bytes: &[u8]) {
    let Ok(answer) = Bootstrap::decode(bytes).and_then(Bootstrap::supported) else { return };
    assert!(!answer.address.is_empty());
    let message = answer.to_protobuf().expect(ENCODES);
    assert_eq!(Bootstrap::decode(&message).as_ref(), Ok(&answer));
    assert_eq!(Bootstrap::decode(answer.to_json().as_bytes()).as_ref(), Ok(&answer));
}

fn runtime_options(bytes: &[u8]) {
    let as_type = |name: &str| any::raw(name, bytes.to_vec());
    let names = [OptionsMessage::FULL_NAME, RuntimeOptions::NAME, RuntimeOptions::OLD_NAME];
    // The text of a configuration alone, too, without a message around it.
    let mut table = Vec::new();
    CodedOutputStream::vec(&mut table).write_bytes(3, bytes).expect(ENCODES);
    let anys = names.map(as_type).into_iter().chain(Any::parse_from_bytes(bytes).ok());
    for any in anys.chain([any::raw(RuntimeOptions::NAME, table)]) {
        let Ok(options) = RuncOptions::sent(Some(&any)) else { continue };
        // `delete`, in another process, must find what Create was told.
        let json = serde_json::to_vec(&*options).expect(ENCODES);
        let left = RuncOptions::parse(&json, options.binary_name.as_bytes());
        assert!(left.is_ok_and(|left| left == options), "not what a bundle keeps");
    }
}

/// `options.json`, an empty line, `runtime`.
fn options_file(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let (json, runtime) = bytes.split_at(end);
    let Ok(options) = RuncOptions::parse(json, runtime) else { return };
    assert!(!options.binary().is_empty());
    assert!(options.root(NAMESPACE).ends_with(NAMESPACE));
    let again = serde_json::to_vec(&*options).expect(ENCODES);
    assert!(RuncOptions::parse(&again, b"").is_ok_and(|again| again == options));
}

fn config_json(bytes: &[u8]) {
    let Ok(spec) = Spec::parse(bytes) else { return };
    let _ = spec.has_own_pid_namespace();
    // Whatever group a spec names, its socket is one of the directory, unless it is refused.
    let dir = Path::new(socket::DEFAULT_DIR);
    let group = spec.group().unwrap_or(ID);
    let Ok(path) = socket::path(dir, "/run/c.sock", NAMESPACE, group) else {
        assert!(group.contains(".."), "a hash fits");
        return;
    };
    assert_eq!(path.parent(), Some(dir));
    assert_eq!(path.file_name().map(OsStr::len), Some(64));
}

fn runtime_log(bytes: &[u8]) {
    let last = log::last_error(bytes);
    assert!(last.as_ref().is_none_or(|last| last.len() <= bytes.len()));
    let exit = Exit { status: 1, at: SystemTime::UNIX_EPOCH };
    let _ = error::told("create", &Ok(last), OsStr::new("runc"), exit, bytes).kind();
}

fn runtime_ps(bytes: &[u8]) {
    let Ok(pids) = verbs::pids(bytes) else { return };
    assert!(pids.len() <= bytes.len());
    let again = serde_json::to_vec(&pids).expect(ENCODES);
    assert!(verbs::pids(&again).is_ok_and(|again| again == pids));
}

fn pid_file(bytes: &[u8]) {
    let Some(pid) = str::from_utf8(bytes).ok().and_then(parse_pid) else { return };
    assert!(pid > 1, "a signal to {pid} would reach more than one process");
    assert_eq!(parse_pid(&pid.to_string()), Some(pid));
}

fn mountinfo(bytes: &[u8]) {
    for line in lines(bytes) {
        let Some(entry) = Entry::parse(line) else { continue };
        let _ = (entry.ids(), entry.root(), entry.fs_type(), entry.super_options().count());
        assert!(entry.mount_point().as_os_str().len() <= line.len());
        assert!(entry.is_within(&entry.mount_point()));
    }
}

/// `/proc/<pid>/cgroup`, an empty line, `/proc/<pid>/mountinfo`.
fn cgroup_of_process(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
    let (lines_of_process, table) = bytes.split_at(end);
    let memberships = membership::parse(lines_of_process);
    assert!(memberships.iter().all(|membership| membership.path.is_absolute()));
    let mounts: Vec<_> = lines(table)
        .filter_map(Entry::parse)
        .filter_map(|entry| layout::CgroupMount::parse(&entry))
        .collect();
    let directories = match layout::Layout::find(&memberships, &mounts) {
        None => return,
        Some(layout::Layout::V1(groups)) => groups.into_iter().map(|it| it.directory).collect(),
        Some(layout::Layout::Unified { dir, .. }) => vec![dir],
    };
    for directory in directories {
        let is_in = |mount: &layout::CgroupMount| {
            directory.strip_prefix(&mount.mount_point).is_ok_and(is_below)
        };
        assert!(mounts.iter().any(is_in), "{} is in no cgroup mount", directory.display());
    }
}

/// The files of a cgroup directory, whichever they are.
fn cgroup_files(bytes: &[u8]) {
    let _ = (v1::memory_stat(bytes), v2::memory_stat(bytes), v2::memory_events(bytes));
    let _ = (freezer::parse(bytes), blkio::device_names(bytes).len());
    let _ = str::from_utf8(bytes).ok().and_then(oom_score::next_score);
    let count = lines(bytes).count();
    assert!(blkio::entries(bytes).len() <= count);
    assert!(rdma::entries(bytes).count() <= count);
    assert!(lines(bytes).filter_map(v2::io_entry).count() <= count);
    if let Some(pressure) = v2::pressure(bytes) {
        for data in pressure.some.iter().chain(pressure.full.iter()) {
            assert!(data.avg10.is_finite() && data.avg60.is_finite() && data.avg300.is_finite());
        }
    }
}

fn cgroup_path(bytes: &[u8]) {
    let Ok(path) = str::from_utf8(bytes) else { return };
    for unified in [true, false] {
        if let Ok(below) = join::validate(path, unified) {
            assert!(is_below(below), "{path:?} leads out of its mount");
        }
    }
}

/// One option a line.
fn mount_options(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<&str> = text.split('\n').collect();
    let options = Options::parse(&words);
    assert!(options.data.len() + options.propagation.len() <= words.len());
    let rest = Options::parse(&options.data);
    assert_eq!(rest.data, options.data, "what is the filesystem's stays the filesystem's");
    assert!(rest.flags.is_empty() && rest.propagation.is_empty() && !rest.loop_device);
    let layers = Layers::parse(&options.data);
    assert!(layers.lower.len() + layers.data_only.len() <= text.len());
    for maps in [options.id_maps.0, options.id_maps.1].into_iter().flatten() {
        if let Ok(table) = id_map::table("uidmap", &maps) {
            assert_eq!(table.lines().count(), maps.split(',').count());
        }
    }
}

/// The three fields, one a line.
fn stdio_uri(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    for uri in text.split('\n') {
        let Ok(target) = Target::parse(uri) else { continue };
        match &target {
            Target::Null => assert!(uri.is_empty()),
            Target::Path(path) => {
                assert!(!path.as_os_str().as_bytes().contains(&0));
                if let Some(again) = path.to_str().map(Target::parse) {
                    assert!(again.is_ok_and(|again| again == target), "a path is a path");
                }
            }
            Target::File(path) => assert!(path.is_absolute()),
            Target::Binary(LoggingUri { program, args, .. }) => {
                assert!(program.is_absolute() && args.len().is_multiple_of(2));
                assert!(args.iter().all(|arg| !arg.as_bytes().contains(&0)));
            }
        }
    }
    let mut fields = text.split('\n');
    let mut field = || fields.next().unwrap_or_default();
    let (stdin, stdout, stderr) = (field(), field(), field());
    for terminal in [true, false] {
        let _ = Plan::new(stdin, stdout, stderr, terminal);
    }
}

fn exec_spec(bytes: &[u8]) {
    let _ = resources::check(bytes);
    for terminal in [true, false] {
        let Ok(spec) = exec::with_terminal(bytes, terminal) else { continue };
        let again = exec::with_terminal(&spec, terminal);
        assert!(again.is_ok_and(|again| again == spec), "changed what it need not change");
        assert!(exec::with_terminal(&spec, !terminal).is_ok_and(|other| other != spec));
    }
}

fn task_request(bytes: &[u8]) {
    let is_safe = |id: &str| is_below(Path::new(id)) && !id.is_empty() && !id.contains('/');
    if let Ok(request) = CreateTaskRequest::parse_from_bytes(bytes)
        && let Ok(create) = convert::create(request)
    {
        assert!(is_safe(&create.id) && create.bundle.is_absolute());
        for mount in &create.rootfs {
            let _ = Options::parse(&mount.options);
        }
        let stdio = &create.stdio;
        let _ = Plan::new(&stdio.stdin, &stdio.stdout, &stdio.stderr, stdio.terminal);
    }
    if let Ok(request) = ExecProcessRequest::parse_from_bytes(bytes)
        && let Ok(exec) = convert::exec(request)
    {
        assert!(is_safe(&exec.id));
        exec_spec(&exec.spec);
    }
}

/// Messages one after the other, as from a client and as from another shim.
fn ttrpc(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        let before = rest;
        let read = pin!(message::read(&mut rest)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(read) = read else { panic!("bytes in memory are there at once") };
        match read {
            Err(_) | Ok(None) => break,
            Ok(Some(Incoming::TooLarge(header))) => {
                assert!(header.length as usize > frame::MAX_PAYLOAD);
            }
            Ok(Some(Incoming::Whole(header, payload))) => {
                let taken = &before[..before.len() - rest.len()];
                assert_eq!(taken, [&header.encode()[..], &payload].concat());
                if let Ok(Some(request)) = server::request(header, &payload) {
                    assert!(!header.stream_id.is_multiple_of(2));
                    task_request(&request.payload);
                }
                let _ = Response::parse_from_bytes(&payload);
            }
        }
    }
    let first = bytes.first_chunk().map_or(1, |head| Header::decode(*head).stream_id);
    let _ = probe::answer(&mut &*bytes, first);
}

/// One word a line.
fn command_line(bytes: &[u8]) {
    let words = lines(bytes).map(|word| OsString::from(OsStr::from_bytes(word)));
    let Ok(args) = Args::parse(words) else { return };
    assert!(!args.program.contains('/'));
    for name in [&args.namespace, &args.id] {
        use crate::boot::args::Action;
        let is_used = !matches!(args.action, Action::Info | Action::Version);
        assert!(!is_used || (is_below(Path::new(name)) && !name.contains('/')), "{name:?}");
    }
}
