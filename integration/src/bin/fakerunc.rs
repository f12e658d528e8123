//! The OCI runtime that misbehaves by script; see `integration::fakerunc`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use integration::fakerunc::{Call, Gate, Rule, Script, script_beside};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(io::stderr(), "fakerunc: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<ExitCode> {
    let mut argv = std::env::args();
    let program = located(Path::new(&argv.next().unwrap_or_default()));
    let script = std::fs::read(script_beside(&program))?;
    let script: Script = serde_json::from_slice(&script)?;
    let call = Call::of(argv.collect());
    write_down(&script.log, &call)?;
    let fits = |rule: &&Rule| {
        rule.subcommand == call.subcommand && (rule.id.is_empty() || call.has(&rule.id))
    };
    match script.rules.iter().find(fits) {
        Some(rule) => obey(rule, &script, &call),
        // In place of this process: nothing stands between the shim and the real runtime.
        None => Err(Command::new(&script.runtime).args(shown(&call.argv, &script)).exec()),
    }
}

/// What the real runtime gets to see of these arguments.
fn shown<'a>(argv: &'a [String], script: &Script) -> impl Iterator<Item = &'a String> {
    argv.iter().filter(|argument| !script.hidden.contains(argument))
}

/// A program that was called by its name alone, by the path under which it is found.
fn located(program: &Path) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        || std::env::split_paths(&path).map(|dir| dir.join(program)).find(|one| one.exists());
    if program.components().count() > 1 {
        return program.to_path_buf();
    }
    found().unwrap_or_else(|| program.to_path_buf())
}

fn obey(rule: &Rule, script: &Script, call: &Call) -> io::Result<ExitCode> {
    if let Some(gate) = &rule.gate {
        Gate::pass(gate)?;
    }
    std::thread::sleep(Duration::from_millis(rule.delay_ms));
    for (file, content) in &rule.files {
        std::fs::write(file, content)?;
    }
    let mut code = 0;
    if rule.restores {
        code = restore(script, call)?;
    } else if !rule.skip {
        code = run_real(script, &call.argv)?;
    }
    for line in &rule.besides {
        code = run_real(script, &[call.global(), line].concat())?;
    }
    if let (Some(signal), Some(file)) = (rule.kill_init, call.value("--pid-file")) {
        let pid = std::fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)?;
        kill(Pid::from_raw(pid), Signal::try_from(signal)?)?;
    }
    if let Some(gate) = &rule.gate_after {
        Gate::pass(gate)?;
    }
    io::stdout().write_all(rule.stdout.as_bytes())?;
    if !rule.error.is_empty() {
        complain(&rule.error, call)?;
    }
    let code = rule.exit.unwrap_or(code);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Runs the real runtime to its end; gives its status as a shell does.
fn run_real(script: &Script, argv: &[String]) -> io::Result<i32> {
    let status = Command::new(&script.runtime).args(shown(argv, script)).status()?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
}

/// What a restore comes to for the caller: the container runs, and its pid is in the pid file.
fn restore(script: &Script, call: &Call) -> io::Result<i32> {
    let global = call.global();
    let mut create = global.to_vec();
    create.push("create".to_owned());
    for flag in ["--bundle", "--pid-file", "--console-socket"] {
        if let Some(value) = call.value(flag) {
            create.extend([flag.to_owned(), value.to_owned()]);
        }
    }
    let id = call.argv.last().cloned().unwrap_or_default();
    create.push(id.clone());
    match run_real(script, &create)? {
        0 => run_real(script, &[global, &["start".to_owned(), id]].concat()),
        code => Ok(code),
    }
}

/// An error as the runtimes report it: a line on stderr, and a JSON line in the log.
fn complain(error: &str, call: &Call) -> io::Result<()> {
    writeln!(io::stderr(), "{error}")?;
    if let Some(log) = call.value("--log") {
        let line =
            serde_json::json!({ "level": "error", "msg": error, "time": "2024-01-01T00:00:00Z" });
        append(Path::new(log), &line.to_string())?;
    }
    Ok(())
}

fn write_down(log: &Path, call: &Call) -> io::Result<()> {
    append(log, &serde_json::to_string(call)?)
}

/// One write: lines of concurrent calls do not mix.
fn append(file: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(format!("{line}\n").as_bytes())
}
