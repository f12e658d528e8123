//! Reads the list of calls; its first lines say how it is written.

use crate::failure::{Context, Failure, Result};

const CALLS: &str = include_str!("calls.txt");

/// A story that is played with a shim of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What happens in it, for a reader.
    pub about: String,
    /// The containers that will be.
    pub containers: Vec<Planned>,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

/// A container to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Its name in the case.
    pub name: String,
    /// Its program.
    pub program: Program,
    /// In the host's pid namespace.
    pub host_pids: bool,
}

/// What a process runs, and on what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// The command line.
    pub argv: Vec<String>,
    /// On a terminal.
    pub tty: bool,
    /// With streams, stdin among them.
    pub stdin: bool,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The line as written; with its number, from the second one of the same wording on.
    pub text: String,
    /// What it means.
    pub action: Action,
}

/// What is done in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Call the shim and note the answer.
    Call(Call),
    /// Call the shim and go on.
    Begin(Call),
    /// Note the answer to what the line with these words began.
    End(String),
    /// Wait for a status.
    Until(Target, String),
    /// Change how the runtime behaves at a verb.
    Runtime {
        /// The subcommand.
        verb: String,
        /// How from now on.
        manner: Manner,
    },
    /// The runtime is itself again.
    RuntimeWorks,
    /// Call the runtime without the shim, with these arguments.
    Behind(Vec<String>),
}

/// How the runtime behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    /// It fails and says why.
    Fails(String),
    /// It says that it did.
    Pretends,
    /// It stands still.
    Holds,
    /// It goes on from where it stood.
    GoesOn,
    /// It creates and starts.
    Restores,
}

/// A call of the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The verb.
    pub verb: String,
    /// Whom it is for.
    pub target: Target,
    /// Everything behind.
    pub words: Vec<String>,
}

/// A container, or an exec in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    /// The container's name in the case.
    pub container: String,
    /// The exec's id; none for init.
    pub exec: Option<String>,
}

/// All cases.
///
/// # Errors
/// The line that cannot be read.
pub fn cases() -> Result<Vec<Case>> {
    read(CALLS)
}

fn read(text: &str) -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = if let Some(title) = line.strip_prefix("case ") {
            title_of(title).map(|case| cases.push(case))
        } else {
            let case = cases.last_mut().ok_or_else(|| Failure::new("a line before any case"));
            case.and_then(|case| case.add(line))
        };
        read.context(format!("line {}, {line:?}", number + 1))?;
    }
    Ok(cases)
}

fn title_of(title: &str) -> Result<Case> {
    let (name, about) = title.split_once(": ").ok_or_else(|| Failure::new("no sentence"))?;
    let (name, about) = (name.to_owned(), about.to_owned());
    Ok(Case { name, about, containers: Vec::new(), steps: Vec::new() })
}

impl Case {
    fn add(&mut self, line: &str) -> Result {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["container", name, ..] = words.as_slice() {
            let mut program = Program::read(words.get(2..).unwrap_or_default());
            let host_pids = take(&mut program.argv, "+hostpid");
            self.containers.push(Planned { name: (*name).to_owned(), program, host_pids });
            return Ok(());
        }
        let same = |step: &&Step| step.text == line || step.text.starts_with(&format!("{line} ("));
        let text = match self.steps.iter().filter(same).count() {
            0 => line.to_owned(),
            before => format!("{line} ({})", before + 1),
        };
        self.steps.push(Step { text, action: Action::read(&words)? });
        Ok(())
    }
}

impl Program {
    /// Reads a command line with its flags in front.
    pub(super) fn read(words: &[&str]) -> Self {
        let mut program = Self::default();
        let mut argv: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        program.tty = take(&mut argv, "+tty");
        program.stdin = take(&mut argv, "+stdin");
        if let Some(at) = argv.iter().position(|word| word == "sh:") {
            let script = argv.split_off(at + 1).join(" ");
            argv.truncate(at);
            argv.extend(["sh".to_owned(), "-c".to_owned(), script]);
        }
        Self { argv, ..program }
    }
}

impl Action {
    fn read(words: &[&str]) -> Result<Self> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Ok(match words {
            ["begin", call @ ..] => Self::Begin(Call::read(call)?),
            ["end", call @ ..] => Self::End(call.join(" ")),
            ["until", target, status] => Self::Until(Target::read(target), (*status).to_owned()),
            ["behind", arguments @ ..] => Self::Behind(owned(arguments)),
            ["runtime", "works"] => Self::RuntimeWorks,
            ["runtime", verb, manner @ ..] => {
                Self::Runtime { verb: (*verb).to_owned(), manner: Manner::read(manner)? }
            }
            call => Self::Call(Call::read(call)?),
        })
    }
}

impl Manner {
    fn read(words: &[&str]) -> Result<Self> {
        Ok(match words {
            ["fails", text @ ..] => Self::Fails(text.join(" ")),
            ["pretends"] => Self::Pretends,
            ["holds"] => Self::Holds,
            ["goes", "on"] => Self::GoesOn,
            ["restores"] => Self::Restores,
            _ => return Err(Failure::new("the runtime knows no such manner")),
        })
    }
}

/// What a shim can be asked: the methods of the service, and what is none of them.
const VERBS: [&str; 21] = [
    "state",
    "create",
    "start",
    "delete",
    "pids",
    "pause",
    "resume",
    "checkpoint",
    "kill",
    "exec",
    "resize",
    "closeio",
    "update",
    "wait",
    "stats",
    "connect",
    "shutdown",
    "method",
    "service",
    "undecodable",
    "oversize",
];

impl Call {
    fn read(words: &[&str]) -> Result<Self> {
        let verb = words.first().copied().unwrap_or_default();
        if !VERBS.contains(&verb) {
            return Err(Failure::new("no such verb"));
        }
        let target = words.get(1).map(|word| Target::read(word)).unwrap_or_default();
        let words = words.iter().skip(2).map(|word| (*word).to_owned()).collect();
        Ok(Self { verb: verb.to_owned(), target, words })
    }

    /// What follows a flag `+name=`.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        let prefix = format!("+{name}=");
        self.words.iter().find_map(|word| word.strip_prefix(&prefix))
    }

    /// Is this word there?
    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|one| one == word)
    }
}

impl Target {
    fn read(word: &str) -> Self {
        match word.split_once('/') {
            Some((container, exec)) => {
                Self { container: container.to_owned(), exec: Some(exec.to_owned()) }
            }
            None => Self { container: word.to_owned(), exec: None },
        }
    }
}

fn take(words: &mut Vec<String>, word: &str) -> bool {
    let before = words.len();
    words.retain(|one| one != word);
    words.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_understood_and_told_apart() {
        let cases = cases().expect("the script is well-formed");
        for case in &cases {
            assert!(!case.containers.is_empty(), "{}", case.name);
            let mut texts: Vec<&str> = case.steps.iter().map(|step| step.text.as_str()).collect();
            texts.sort_unstable();
            let all = texts.len();
            texts.dedup();
            assert_eq!(texts.len(), all, "{}", case.name);
        }
        let mut names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn lines_mean_what_they_say() {
        let text = "case a: b\n container c +tty sh: exit 7\n kill c/e 9 all\n kill c/e 9 all\n";
        let cases = read(text).expect("well-formed");
        let case = cases.first().expect("one case");
        let planned = case.containers.first().expect("one container");
        assert_eq!(planned.program.argv, ["sh", "-c", "exit 7"]);
        assert!(planned.program.tty && !planned.program.stdin);
        let [first, second] = case.steps.as_slice() else { panic!("{case:?}") };
        assert_eq!(second.text, "kill c/e 9 all (2)");
        let Action::Call(call) = &first.action else { panic!("{first:?}") };
        assert_eq!((call.target.container.as_str(), call.target.exec.as_deref()), ("c", Some("e")));
        assert!(call.has("all") && !call.has("9x"));
        assert!(read("case a: b\n nonsense c\n").is_err());
    }
}
