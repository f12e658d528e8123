//! Logging binaries that tests write, as shell scripts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Result};
use crate::fixture::Fixture;
use crate::leak::{Kind, Snapshot};
use crate::stdio::Stdio;
use crate::{deadline, paths};

/// A logger: a shell script that is given nothing but what the protocol gives it.
#[derive(Debug)]
pub struct Logger {
    /// The script.
    pub program: PathBuf,
    /// Where it writes.
    pub dir: PathBuf,
}

impl Logger {
    /// Writes a script. `$D` in it is the logger's directory, `$B` is busybox: there is no PATH.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn script(fixture: &Fixture, name: &str, body: &str) -> Result<Self> {
        let dir = fixture.file(&format!("log-{name}"));
        fs::create_dir_all(&dir)?;
        let program = dir.join("logger");
        let busybox = paths::busybox()?;
        let (busybox, place) = (busybox.display(), dir.display());
        let text = format!("#!{busybox} sh\nB={busybox} D={place}\necho $$ >$D/pid\n{body}\n");
        fs::write(&program, text)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { program, dir })
    }

    /// One that copies everything, says that it is ready, and ends when both streams do.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn copying(fixture: &Fixture, name: &str) -> Result<Self> {
        // The shim asks it to end when the last byte has been read, which may not be in the file yet.
        let body = "trap wait TERM\n\
            $B tr '\\0' '\\n' </proc/$$/environ >$D/env\n\
            for one; do echo \"$one\"; done >$D/args\n\
            $B cat <&3 >$D/out 5>&- &\n\
            $B cat <&4 >$D/err 5>&- &\n\
            echo >&5\n\
            exec 3<&- 4<&- 5>&-\n\
            wait";
        Self::script(fixture, name, body)
    }

    /// What a client names to have this logger, of a scheme and with arguments.
    #[must_use]
    pub fn uri(&self, scheme: &str, query: &str) -> String {
        format!("{scheme}://{}{query}", self.program.display())
    }

    /// Streams that this logger reads.
    #[must_use]
    pub fn stdio(&self, scheme: &str, query: &str) -> Stdio {
        let uri = self.uri(scheme, query);
        Stdio { stdout: uri.clone(), stderr: uri, ..Stdio::default() }
    }

    /// A file that it has written.
    ///
    /// # Errors
    /// When there is none.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        fs::read(self.dir.join(name)).context(format!("reading {name} of the logger"))
    }

    /// The lines of one.
    ///
    /// # Errors
    /// When there is none.
    pub fn lines(&self, name: &str) -> Result<Vec<String>> {
        let text = String::from_utf8_lossy(&self.bytes(name)?).into_owned();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Its process, once it has come to its first line.
    ///
    /// # Errors
    /// When it does not come to it.
    pub async fn pid(&self) -> Result<u32> {
        let file = self.dir.join("pid");
        let read = || fs::read_to_string(&file).ok()?.trim().parse().ok();
        deadline::until_some("the logger", deadline::HANG, read).await
    }
}

/// Processes of the fixture that were started as this program.
#[must_use]
pub fn running(fixture: &Fixture, program: &Path) -> Vec<String> {
    let program = program.display().to_string();
    let now = Snapshot::take(&fixture.scope());
    let is_it = |detail: &str| detail.contains(&program);
    let found = now.items().filter(|item| item.kind == Kind::Process && is_it(&item.detail));
    found.map(|item| item.detail.clone()).collect()
}
