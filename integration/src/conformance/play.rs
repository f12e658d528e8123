//! Plays a case: starts a shim bare, as a manager of its time does, makes the calls, and notes all that can be seen.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use tokio::task::JoinHandle;

use super::ask::{Ask, Ground, Reply};
use super::peer::Peer;
use super::script::{Action, Call, Case, Manner, Planned, Program, Target};
use super::told::{Names, is_status};
use crate::bundle::Bundle;
use crate::deadline::HANG;
use crate::failure::{Context, Failure, Result};
use crate::fakectrd::FakeContainerd;
use crate::fakerunc::{FakeRunc, Gate, Rule};
use crate::fixture::Fixture;
use crate::leak::Item;
use crate::scenario::witnessed;
use crate::shim::{Launch, Started};
use crate::spec::Spec;
use crate::stdio::{Collected, Stdio, collect};
use crate::task::{Answer, TaskClient};

/// A case that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(240);
/// How long ends may take to be seen, of a shim that leaves nothing.
const SETTLE: Duration = Duration::from_secs(10);
/// How long what was begun has to reach the shim before the next call does. The order of a connection's calls is the
/// order in which a shim takes them up, but not in which Go's scheduler runs them.
const HEAD_START: Duration = Duration::from_millis(150);
/// Where shims have the runtime keep its state, unless options say otherwise.
const RUNTIME_ROOT: &str = "/run/containerd/runc";

/// What was seen at one point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The line of the script, or what is looked at in the end.
    pub step: String,
    /// The answer, or what was seen.
    pub seen: String,
}

/// Plays a case against a shim, with an OCI runtime.
///
/// # Errors
/// When the case cannot be played: a shim that does not start, say. Whatever a shim answers is no error.
pub fn play(case: &Case, peer: &Peer, runtime: &Path) -> Result<Vec<Note>> {
    let played = witnessed(LONGEST, SETTLE, async |fixture| {
        let mut player = Player::start(fixture, case, peer, runtime).await?;
        for step in &case.steps {
            let seen = player.act(&step.action).await.context(&step.text)?;
            player.notes.extend(seen.map(|seen| Note { step: step.text.clone(), seen }));
        }
        player.finish(case).await
    });
    let (mut notes, left) = played.context(format!("{}: {}", peer.version, case.name))?;
    notes.push(Note { step: "left behind".to_owned(), seen: kinds(&left) });
    Ok(notes)
}

fn kinds(left: &[Item]) -> String {
    let mut kinds: Vec<String> = left.iter().map(|item| format!("{:?}", item.kind)).collect();
    kinds.dedup();
    if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ").to_lowercase() }
}

/// Who plays a case, and what is known in it.
pub(super) struct Player<'a> {
    pub(super) fixture: &'a Fixture,
    pub(super) sink: FakeContainerd,
    runtime: &'a Path,
    pub(super) fake: FakeRunc,
    rules: BTreeMap<String, Rule>,
    pub(super) gates: BTreeMap<String, Gate>,
    containers: BTreeMap<String, (Bundle, Stdio)>,
    pub(super) tasks: TaskClient,
    pub(super) shim: u32,
    pub(super) names: Names,
    /// Calls that have not been answered yet, by their words.
    begun: Vec<(String, Call, JoinHandle<Answer<Reply>>)>,
    readers: Vec<Collected>,
    streams: usize,
    pub(super) notes: Vec<Note>,
}

impl<'a> Player<'a> {
    async fn start(
        fixture: &'a Fixture,
        case: &Case,
        peer: &Peer,
        runtime: &'a Path,
    ) -> Result<Self> {
        let sink = fixture.fake_containerd()?;
        let fake = FakeRunc::install_for(fixture, runtime)?;
        let mut names = Names::default();
        names.text(&fake.path.display().to_string(), "RUNTIME");
        names.text(&fixture.dir().display().to_string(), "DIR");
        names.text(fixture.namespace(), "NAMESPACE");
        let mut bundles = Vec::new();
        for planned in &case.containers {
            let bundle = fixture.bundle(&planned.name, &spec(planned))?;
            names.text(&bundle.path(), &format!("BUNDLE-{}", planned.name));
            bundles.push(bundle);
        }
        let first = bundles.first().ok_or_else(|| Failure::new("a case without container"))?;
        let launch = Launch::new(fixture, first).era(peer.era).binary(peer.binary.clone());
        let ran = launch.run("start").await?;
        if !ran.status.success() {
            return Err(Failure::new(format!("start: {}: {}", ran.status, ran.stderr)));
        }
        let address = Started::read(&ran.stdout)?.address;
        let tasks = TaskClient::connect(&address, peer.service, fixture.namespace()).await?;
        let shim = tasks.connect_task("none").await?.shim_pid;
        names.process(shim, "the shim");
        let mut player = Self {
            fixture,
            sink,
            runtime,
            fake,
            rules: BTreeMap::new(),
            gates: BTreeMap::new(),
            containers: BTreeMap::new(),
            tasks,
            shim,
            names,
            begun: Vec::new(),
            readers: Vec::new(),
            streams: 0,
            notes: Vec::new(),
        };
        for (planned, bundle) in case.containers.iter().zip(bundles) {
            let stdio = player.streams_of(&planned.program)?;
            player.containers.insert(planned.name.clone(), (bundle, stdio));
        }
        // Last, so that it is replaced after everything that contains it.
        for name in ["c", "d", "x"] {
            player.names.text(&fixture.id(name), name);
        }
        Ok(player)
    }

    /// Does what a line says; gives what is to be noted of it.
    async fn act(&mut self, action: &Action) -> Result<Option<String>> {
        match action {
            Action::Call(call) => {
                let ask = self.ask(call)?;
                let answer = ask.send(self.tasks.clone()).await;
                Ok(Some(self.tell(call, &answer)))
            }
            Action::Begin(call) => self.begin(call).await.map(|()| None),
            Action::End(words) => {
                let at = self.begun.iter().position(|(begun, ..)| begun == words);
                let at = at.ok_or_else(|| Failure::new("nothing such was begun"))?;
                let (_, call, answer) = self.begun.remove(at);
                let answer = answer.await?;
                Ok(Some(self.tell(&call, &answer)))
            }
            Action::Until(target, status) => self.until(target, status).await.map(|()| None),
            Action::Runtime { verb, manner } => self.set(verb, manner).map(|()| None),
            Action::RuntimeWorks => {
                self.rules.clear();
                self.fake.obey(&[]).map(|()| None)
            }
            Action::Behind(words) => self.behind(words).await.map(|()| None),
        }
    }

    fn tell(&mut self, call: &Call, answer: &Answer<Reply>) -> String {
        if let Ok(Reply::Pid(pid)) = answer {
            let exec = call.target.exec.as_ref().map(|exec| format!("/{exec}"));
            let name = format!("{}{}", call.target.container, exec.unwrap_or_default());
            self.names.process(*pid, &name);
        }
        self.names.answer(answer)
    }

    fn ask(&mut self, call: &Call) -> Result<Ask> {
        let id = self.fixture.id(&call.target.container);
        let exec = call.target.exec.clone().unwrap_or_default();
        match call.verb.as_str() {
            "create" => {
                let (bundle, stdio) = self
                    .containers
                    .get(&call.target.container)
                    .ok_or_else(|| Failure::new("no such container was announced"))?;
                let runtime = self.fake.path.display().to_string();
                Ask::create(call, &Ground { bundle, stdio, runtime: &runtime })
            }
            "exec" => {
                let words: Vec<&str> = call.words.iter().map(String::as_str).collect();
                let stdio = self.streams_of(&Program::read(&words))?;
                Ok(Ask::exec(call, &id, &exec, &stdio))
            }
            _ => Ask::plain(call, &id, &exec),
        }
    }

    async fn begin(&mut self, call: &Call) -> Result {
        let ask = self.ask(call)?;
        let answer = tokio::spawn(ask.send(self.tasks.clone()));
        let exec = call.target.exec.as_ref().map(|exec| format!("/{exec}")).unwrap_or_default();
        let words = format!("{} {}{exec}", call.verb, call.target.container);
        self.begun.push((words, call.clone(), answer));
        match self.gates.get(&call.verb) {
            Some(gate) => gate.reached().await,
            None => {
                tokio::time::sleep(HEAD_START).await;
                Ok(())
            }
        }
    }

    async fn until(&self, target: &Target, status: &str) -> Result {
        let id = self.fixture.id(&target.container);
        let exec = target.exec.clone().unwrap_or_default();
        let start = std::time::Instant::now();
        loop {
            let now = self.tasks.status(&id, &exec).await?.enum_value_or_default();
            if is_status(now, status) {
                return Ok(());
            }
            if start.elapsed() > HANG {
                return Err(Failure::new(format!("it stays {now:?}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn set(&mut self, verb: &str, manner: &Manner) -> Result {
        let rule = match manner {
            Manner::Fails(text) => Rule::on(verb).fails(text),
            Manner::Pretends => Rule { skip: true, ..Rule::on(verb) },
            Manner::Restores => Rule { restores: true, ..Rule::on(verb) },
            Manner::Holds => {
                let gate = Gate::new(self.fixture, verb);
                let rule = Rule { gate: Some(gate.path.clone()), ..Rule::on(verb) };
                self.gates.insert(verb.to_owned(), gate);
                rule
            }
            Manner::GoesOn => {
                let gate = self.gates.remove(verb);
                return gate.ok_or_else(|| Failure::new("nothing is held"))?.open();
            }
        };
        self.rules.insert(verb.to_owned(), rule);
        self.fake.obey(&self.rules.values().cloned().collect::<Vec<_>>())
    }

    async fn behind(&self, words: &[String]) -> Result {
        let ids = words.iter().map(|word| match self.containers.get(word) {
            Some((bundle, _)) => bundle.id.clone(),
            None => word.clone(),
        });
        let root = Path::new(RUNTIME_ROOT).join(self.fixture.namespace());
        let mut command = Command::new(self.runtime);
        let output = command.arg("--root").arg(root).args(ids).output().await?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::new(String::from_utf8_lossy(&output.stderr)))
    }

    /// Fifos for a process, and readers of its output.
    fn streams_of(&mut self, program: &Program) -> Result<Stdio> {
        if !program.tty && !program.stdin {
            return Ok(Stdio::null());
        }
        self.streams += 1;
        let name = format!("s{}", self.streams);
        let dir = self.fixture.file("fifo");
        let stdio =
            if program.tty { Stdio::terminal(&dir, &name)? } else { Stdio::fifos(&dir, &name)? };
        for path in [&stdio.stdout, &stdio.stderr] {
            if !path.is_empty() {
                self.readers.push(collect(path)?);
            }
        }
        Ok(stdio)
    }
}

fn spec(planned: &Planned) -> Spec {
    let argv: Vec<&str> = planned.program.argv.iter().map(String::as_str).collect();
    let spec = Spec::new(&argv);
    let spec = if planned.program.tty { spec.terminal() } else { spec };
    if planned.host_pids { spec.without_namespace("pid") } else { spec }
}
