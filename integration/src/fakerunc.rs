//! An OCI runtime that can be made to misbehave: it stands in for the real one as `BinaryName`, writes down how it was
//! called, and calls the real one, unless its script says otherwise.
//!
//! The binary reads its script from a file beside the name it is called by: `/x/fakerunc` has `/x/fakerunc.json`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::deadline;
use crate::failure::{Context, Result};
use crate::fixture::Fixture;
use crate::paths;

/// What the stand-in does, and on which calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Script {
    /// The real runtime.
    pub runtime: PathBuf,
    /// Where calls are written down, one JSON object a line.
    pub log: PathBuf,
    /// Arguments that are written down and kept from the real runtime, which could not obey them here.
    #[serde(default)]
    pub hidden: Vec<String>,
    /// The first rule that fits a call is obeyed; none: the real runtime is run.
    pub rules: Vec<Rule>,
}

/// What to do on some calls.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Calls of this subcommand.
    pub subcommand: String,
    /// Calls with this container id; empty: any.
    pub id: String,
    /// Before anything else: make the file `<gate>.reached`, then wait until `<gate>` exists.
    pub gate: Option<PathBuf>,
    /// Then wait this long.
    pub delay_ms: u64,
    /// Then write these files.
    pub files: Vec<(PathBuf, String)>,
    /// Do not run the real runtime.
    pub skip: bool,
    /// A restore: create the container anew and start it, since criu is on few machines.
    pub restores: bool,
    /// Then run the real runtime with these command lines too, behind the global flags of the one that came.
    pub besides: Vec<Vec<String>>,
    /// After the real runtime: kill the process in the pid file with this signal.
    pub kill_init: Option<i32>,
    /// After the real runtime: wait at this gate, as at `gate`.
    pub gate_after: Option<PathBuf>,
    /// Print this.
    pub stdout: String,
    /// Say this on stderr, and as an error in the runtime's log.
    pub error: String,
    /// Exit with this instead of the real runtime's status.
    pub exit: Option<i32>,
}

impl Rule {
    /// A rule for all calls of a subcommand, which does nothing yet.
    #[must_use]
    pub fn on(subcommand: &str) -> Self {
        Self { subcommand: subcommand.to_owned(), ..Self::default() }
    }

    /// Only for this container.
    #[must_use]
    pub fn of(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    /// Then this command line of the real runtime, too.
    #[must_use]
    pub fn besides(mut self, line: &[&str]) -> Self {
        self.besides.push(line.iter().map(|&word| word.to_owned()).collect());
        self
    }

    /// The call succeeds without the real runtime.
    #[must_use]
    pub fn succeeds(mut self) -> Self {
        self.skip = true;
        self
    }

    /// The call fails without the real runtime, saying why.
    #[must_use]
    pub fn fails(mut self, error: &str) -> Self {
        error.clone_into(&mut self.error);
        self.skip = true;
        self.exit = Some(1);
        self
    }
}

/// One call, as the stand-in wrote it down.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// The arguments, without the program's name.
    pub argv: Vec<String>,
    /// The subcommand among them.
    pub subcommand: String,
}

impl Call {
    /// Reads a command line: the subcommand is the first argument that is neither a flag nor the value of one.
    #[must_use]
    pub fn of(argv: Vec<String>) -> Self {
        const WITH_VALUE: [&str; 5] = ["--root", "--log", "--log-format", "--criu", "--rootless"];
        let mut rest = argv.iter();
        let mut subcommand = String::new();
        while let Some(argument) = rest.next() {
            if WITH_VALUE.contains(&argument.as_str()) {
                rest.next();
            } else if !argument.starts_with('-') {
                subcommand.clone_from(argument);
                break;
            }
        }
        Self { argv, subcommand }
    }

    /// The arguments from the subcommand on.
    #[must_use]
    pub fn line(&self) -> &[String] {
        let at = self.argv.iter().position(|one| *one == self.subcommand).unwrap_or_default();
        self.argv.get(at..).unwrap_or_default()
    }

    /// The flags before the subcommand, with their values.
    #[must_use]
    pub fn global(&self) -> &[String] {
        let count = self.argv.len() - self.line().len();
        self.argv.get(..count).unwrap_or_default()
    }

    /// Is this argument there?
    #[must_use]
    pub fn has(&self, argument: &str) -> bool {
        self.argv.iter().any(|one| one == argument)
    }

    /// The argument behind a flag.
    #[must_use]
    pub fn value(&self, flag: &str) -> Option<&str> {
        let at = self.argv.iter().position(|one| one == flag)?;
        self.argv.get(at + 1).map(String::as_str)
    }
}

/// A stand-in that is installed in a fixture.
#[derive(Debug)]
pub struct FakeRunc {
    /// What `BinaryName` has to be.
    pub path: PathBuf,
    script: Script,
}

impl FakeRunc {
    /// Installs a stand-in for the default runc.
    ///
    /// # Errors
    /// When it is not built, or its files cannot be written.
    pub fn install(fixture: &Fixture) -> Result<Self> {
        Self::install_for(fixture, &paths::runc()?)
    }

    /// Installs a stand-in for this runtime.
    ///
    /// # Errors
    /// When it is not built, or its files cannot be written.
    pub fn install_for(fixture: &Fixture, runtime: &Path) -> Result<Self> {
        let path = fixture.bin().join("fakerunc");
        symlink(paths::stand_in("fakerunc")?, &path).context("installing fakerunc")?;
        let log = fixture.file("fakerunc.log");
        let (runtime, hidden) = (runtime.to_path_buf(), Vec::new());
        let script = Script { runtime, log, hidden, rules: Vec::new() };
        let fake = Self { path, script };
        fake.write()?;
        Ok(fake)
    }

    /// Obeys these rules from the next call on.
    ///
    /// # Errors
    /// When the script cannot be written.
    pub fn obey(&mut self, rules: &[Rule]) -> Result {
        self.script.rules = rules.to_vec();
        self.write()
    }

    /// Keeps arguments from the real runtime from the next call on.
    ///
    /// # Errors
    /// When the script cannot be written.
    pub fn hide(&mut self, arguments: &[&str]) -> Result {
        self.script.hidden = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.write()
    }

    /// Every call so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn calls(&self) -> Result<Vec<Call>> {
        let log = match fs::read_to_string(&self.script.log) {
            Ok(log) => log,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let call = |line: &str| serde_json::from_str(line).context("reading fakerunc's log");
        log.lines().map(call).collect()
    }

    /// The calls of one subcommand so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn calls_of(&self, subcommand: &str) -> Result<Vec<Call>> {
        Ok(self.calls()?.into_iter().filter(|call| call.subcommand == subcommand).collect())
    }

    fn write(&self) -> Result {
        // A reader sees the old script or the new one.
        let file = script_beside(&self.path);
        let new = file.with_extension("new");
        fs::write(&new, serde_json::to_vec(&self.script)?)?;
        Ok(fs::rename(new, file)?)
    }
}

/// Where a stand-in called by this name has its script.
#[must_use]
pub fn script_beside(program: &Path) -> PathBuf {
    let mut name = program.as_os_str().to_owned();
    name.push(".json");
    PathBuf::from(name)
}

/// A place where a call waits until the test lets it go on.
#[derive(Debug, Clone)]
pub struct Gate {
    /// What a rule needs.
    pub path: PathBuf,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new(fixture: &Fixture, name: &str) -> Self {
        Self { path: fixture.file(&format!("gate-{name}")) }
    }

    /// Waits until a call stands before it.
    ///
    /// # Errors
    /// When none comes.
    pub async fn reached(&self) -> Result {
        let mark = reached_mark(&self.path);
        deadline::until("a call at the gate", deadline::HANG, || mark.exists()).await
    }

    /// Lets everything through from now on.
    ///
    /// # Errors
    /// When its file cannot be made.
    pub fn open(&self) -> Result {
        Ok(fs::write(&self.path, "")?)
    }

    /// Stands before the gate, as the stand-in does. Gives up in the end, so that nothing hangs for ever.
    ///
    /// # Errors
    /// When the mark cannot be made.
    pub fn pass(path: &Path) -> std::io::Result<()> {
        /// More than a test waits for anything.
        const PATIENCE: Duration = Duration::from_secs(120);
        fs::write(reached_mark(path), "")?;
        let _ = deadline::until_some_blocking("the gate", PATIENCE, || path.exists().then_some(()));
        Ok(())
    }
}

fn reached_mark(gate: &Path) -> PathBuf {
    let mut name = gate.as_os_str().to_owned();
    name.push(".reached");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommand_is_found_behind_global_flags() {
        let line =
            "--root /r/ns --log /b/log.json --log-format json --systemd-cgroup kill --all id 9";
        let call = Call::of(line.split(' ').map(str::to_owned).collect());
        assert_eq!(call.subcommand, "kill");
        assert!(call.has("--all"));
        assert_eq!(call.value("--root"), Some("/r/ns"));
    }
}
