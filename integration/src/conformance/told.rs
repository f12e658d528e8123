//! Answers and events as text in which everything that differs from run to run has a name instead of a number.

use std::collections::BTreeMap;

use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::ProcessDetails;

use ttrpc::Code;

use super::ask::Reply;
use crate::event::{Event, time};
use crate::task::{Answer, CallError, Status};

/// What processes and places are called in a case.
#[derive(Debug, Default)]
pub(super) struct Names {
    pids: BTreeMap<u32, String>,
    /// Longest first: a directory's name is in that of all it contains.
    texts: Vec<(String, String)>,
}

impl Names {
    /// A process that is not known yet has this name from now on.
    pub(super) fn process(&mut self, pid: u32, name: &str) {
        if pid != 0 {
            self.pids.entry(pid).or_insert_with(|| name.to_owned());
        }
    }

    /// This text has a name.
    pub(super) fn text(&mut self, text: &str, name: &str) {
        self.texts.push((text.to_owned(), name.to_owned()));
        self.texts.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
    }

    fn pid(&self, pid: u32) -> String {
        match self.pids.get(&pid) {
            _ if pid == 0 => "none".to_owned(),
            Some(name) => name.clone(),
            None => "somebody".to_owned(),
        }
    }

    /// A text with names in it.
    pub(super) fn named(&self, text: &str) -> String {
        let mut named = text.to_owned();
        for (text, name) in &self.texts {
            named = named.replace(text, name);
        }
        // Whole numbers only; a pid in a longer one is a coincidence.
        let mut result = String::new();
        for part in named.split_inclusive(|c: char| !c.is_ascii_digit()) {
            let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
            match digits.parse().ok().and_then(|pid: u32| self.pids.get(&pid)) {
                Some(name) => {
                    result.push_str(&format!("<{name}>"));
                    result.push_str(part.get(digits.len()..).unwrap_or_default());
                }
                None => result.push_str(part),
            }
        }
        result.trim().replace('\n', " ")
    }

    /// An answer.
    pub(super) fn answer(&self, answer: &Answer<Reply>) -> String {
        match answer {
            Ok(reply) => self.reply(reply),
            // Whether the shim or the client notices first is chance.
            Err(CallError::Status { code: Code::DEADLINE_EXCEEDED, .. }) => "no answer".to_owned(),
            Err(CallError::Client(text)) if text.contains("deadline") => "no answer".to_owned(),
            Err(CallError::Status { code, message }) => {
                format!("{code:?}: {}", self.named(without_subject(message)))
            }
            Err(CallError::Closed) => "the connection ends".to_owned(),
            Err(CallError::Client(text)) if text.contains("channel closed") => {
                "no connection".to_owned()
            }
            Err(CallError::Client(text)) => format!("client: {text}"),
        }
    }

    fn reply(&self, reply: &Reply) -> String {
        match reply {
            Reply::Empty => "done".to_owned(),
            Reply::Pid(pid) => format!("pid of {}", self.pid(*pid)),
            Reply::State(state) => {
                let status = state.status.enum_value_or_default();
                let stdio = [&state.stdin, &state.stdout, &state.stderr];
                let mut text = format!("{}, pid of {}", word(status), self.pid(state.pid));
                text.push_str(&exit(state.exit_status, &state.exited_at));
                text.push_str(&format!(", id {}", self.named(&state.id)));
                text.push_str(&format!(", bundle {}", self.named(&state.bundle)));
                for path in stdio.into_iter().filter(|path| !path.is_empty()) {
                    text.push_str(&format!(", {}", self.named(path)));
                }
                if !state.exec_id.is_empty() {
                    text.push_str(&format!(", exec id {}", state.exec_id));
                }
                if state.terminal {
                    text.push_str(", terminal");
                }
                text
            }
            Reply::Deleted(deleted) => {
                let exit = exit(deleted.exit_status, &deleted.exited_at);
                format!("pid of {}{exit}", self.pid(deleted.pid))
            }
            Reply::Exit(waited) => {
                exit(waited.exit_status, &waited.exited_at).trim_start_matches(", ").to_owned()
            }
            Reply::Pids(pids) => {
                let mut all: Vec<String> = pids
                    .processes
                    .iter()
                    .map(|process| format!("{}{}", self.pid(process.pid), details(process)))
                    .collect();
                all.sort_unstable();
                format!("[{}]", all.join(", "))
            }
            Reply::Stats(stats) => match stats.stats.as_ref() {
                Some(any) if any.value.is_empty() => format!("{}, empty", any.type_url),
                Some(any) => any.type_url.clone(),
                None => "nothing".to_owned(),
            },
            Reply::Connected(connected) => {
                let task = self.pid(connected.task_pid);
                let mut text = format!("{}, task {task}", self.pid(connected.shim_pid));
                if !connected.version.is_empty() {
                    text.push_str(&format!(", version {}", connected.version));
                }
                text
            }
        }
    }

    /// An event: its word, whom it names, and how that ended.
    pub(super) fn event(&self, event: &Event) -> String {
        let word = event.word();
        match event {
            Event::Create { pid, .. } | Event::Start { pid, .. } => {
                format!("{word} ({})", self.pid(*pid))
            }
            Event::ExecStarted { pid, .. } => format!("{word} ({})", self.pid(*pid)),
            Event::Exit(exit) => {
                let at = if exit.at.is_some() { "" } else { ", never" };
                format!("{word} ({}: {}{at})", self.pid(exit.pid), exit.status)
            }
            Event::Delete { pid, status, .. } => format!("{word} ({}: {status})", self.pid(*pid)),
            _ => word,
        }
    }
}

/// The text of a failure without whom it is about, which the shim under test puts in front of every one:
/// `container c: ` or `exec e of container c: `.
fn without_subject(text: &str) -> &str {
    let is_subject = |subject: &str| match subject.split(' ').collect::<Vec<_>>()[..] {
        ["container", _] | ["exec", _, "of", "container", _] => true,
        _ => subject == "container without id",
    };
    text.split_once(": ").filter(|(first, _)| is_subject(first)).map_or(text, |(_, rest)| rest)
}

fn word(status: Status) -> &'static str {
    match status {
        Status::UNKNOWN => "unknown",
        Status::CREATED => "created",
        Status::RUNNING => "running",
        Status::STOPPED => "stopped",
        Status::PAUSED => "paused",
        Status::PAUSING => "pausing",
    }
}

/// The word of a status in the script.
pub(super) fn is_status(status: Status, text: &str) -> bool {
    word(status) == text
}

fn exit(status: u32, at: &MessageField<Timestamp>) -> String {
    let when = match at.as_ref() {
        None => ", no time",
        Some(stamp) if time(stamp).is_some() => "",
        Some(stamp) if stamp.seconds == ZERO_TIME => return no_exit(status),
        Some(_) => ", at a strange time",
    };
    format!(", exit {status}{when}")
}

/// Go's zero time, in seconds from 1970: what has not happened.
const ZERO_TIME: i64 = -62_135_596_800;

fn no_exit(status: u32) -> String {
    if status == 0 { String::new() } else { format!(", exit {status}, never") }
}

fn details(process: &containerd_shim_protos::types::task::ProcessInfo) -> String {
    let Some(info) = process.info.as_ref() else { return String::new() };
    let id = ProcessDetails::parse_from_bytes(&info.value).map(|details| details.exec_id);
    format!(" as {} {}", info.type_url, id.unwrap_or_else(|_| "?".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::without_subject;

    #[test]
    fn only_a_subject_is_left_out() {
        for (text, rest) in [
            ("container c: container not created: not found", "container not created: not found"),
            ("exec e of container c: id e: already exists", "id e: already exists"),
            ("container without id: invalid", "invalid"),
            ("container not created: not found", "container not created: not found"),
            ("container `c` already exists: no", "container `c` already exists: no"),
            ("no such container: not found", "no such container: not found"),
        ] {
            assert_eq!(without_subject(text), rest);
        }
    }
}
