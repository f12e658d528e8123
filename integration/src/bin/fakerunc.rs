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
    let program = PathBuf::from(argv.next().unwrap_or_default());
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
        None => Err(Command::new(&script.runtime).args(&call.argv).exec()),
    }
}

fn obey(rule: &Rule, script: &Script, call: &Call) -> io::Result<ExitCode> {
    if let Some(gate) = &rule.gate {
        Gate::pass(gate)?;
    }
    std::thread::sleep(Duration::from_millis(rule.delay_ms));
    let mut code = 0;
    if !rule.skip {
        let status = Command::new(&script.runtime).args(&call.argv).status()?;
        code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
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
