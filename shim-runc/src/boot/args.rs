//! The command line, read as Go's flag package reads it: `-flag value`, `-flag=value`, also with
//! two dashes; switches take no value; the first word that is no flag is the action.

use std::{ffi::OsString, path::PathBuf};

use runtime_proto::errdefs::Code;

use crate::error::Error;

/// What the binary is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start a shim, or find the one of the group.
    Start,
    /// Clean up after a shim that is gone.
    Delete,
    /// Be the shim.
    Serve,
    /// Say what the runtime can do.
    Info,
    /// Say the version.
    Version,
}

/// The command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// Base name of the binary as it was called.
    pub program: String,
    /// What to do.
    pub action: Action,
    /// `-namespace`.
    pub namespace: String,
    /// `-id`.
    pub id: String,
    /// `-address`: containerd's gRPC socket.
    pub address: String,
    /// `-bundle`.
    pub bundle: Option<PathBuf>,
    /// `-debug`.
    pub debug: bool,
    /// `-socket`.
    pub socket: Option<PathBuf>,
}

/// How the binary is used, for those who call it by hand.
pub const USAGE: &str = "\
containerd-shim-runc-v2 runs the containers of one group for containerd; containerd starts it.
To use it, name its path as the runtime: `ctr run --runtime /path/to/containerd-shim-runc-v2 ...`,
or `runtime_path` of a CRI runtime. By hand:

  -v, -version                       print the version
  -info < options                    print what the OCI runtime can do (protobuf)
  -namespace NS -id ID [...] start   start a shim for the bundle in the working directory
  -namespace NS -id ID [...] delete  clean up after a shim that is gone

  -address PATH         containerd's socket
  -bundle PATH          the bundle (delete)
  -debug                log in detail
  -socket PATH          listen here instead of on descriptor 3 (no action)
  -publish-binary PATH, -debug-socket PATH   accepted, not used
";

/// Why a command line cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum ArgsError {
    /// It is not understood: exit code 2, as Go's flag package has it.
    Usage(String),
    /// It lacks something: exit code 1.
    Missing(&'static str),
    /// Help is asked for, or nothing was said.
    Help,
}

impl From<ArgsError> for Error {
    fn from(error: ArgsError) -> Self {
        let message = match error {
            ArgsError::Usage(message) => message,
            ArgsError::Missing(what) => what.to_owned(),
            ArgsError::Help => "help".to_owned(),
        };
        Error::new(Code::InvalidArgument, message)
    }
}

#[derive(Default)]
struct Flags {
    namespace: String,
    id: String,
    address: String,
    bundle: String,
    socket: String,
    unused: String,
    debug: bool,
    version: bool,
    info: bool,
    help: bool,
}

impl Flags {
    fn text(&mut self, name: &str) -> Option<&mut String> {
        Some(match name {
            "namespace" => &mut self.namespace,
            "id" => &mut self.id,
            "address" => &mut self.address,
            "bundle" => &mut self.bundle,
            "socket" => &mut self.socket,
            "publish-binary" | "debug-socket" => &mut self.unused,
            _ => return None,
        })
    }

    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "debug" => &mut self.debug,
            "v" | "version" => &mut self.version,
            "info" => &mut self.info,
            "h" | "help" => &mut self.help,
            _ => return None,
        })
    }
}

impl Args {
    /// Reads a command line, the name of the program first.
    ///
    /// # Errors
    /// [`ArgsError`].
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, ArgsError> {
        let mut words = args.into_iter().map(|word| word.to_string_lossy().into_owned());
        let program = words.next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default().to_owned();
        let mut flags = Flags::default();
        let mut action = None;
        let mut any = false;
        while let Some(word) = words.next() {
            any = true;
            if word == "--" {
                action = words.next();
                break;
            }
            let Some(flag) = word.strip_prefix('-').filter(|flag| !flag.is_empty()) else {
                action = Some(word);
                break;
            };
            read_flag(&mut flags, flag.strip_prefix('-').unwrap_or(flag), &mut words)?;
        }
        if flags.help || !any {
            return Err(ArgsError::Help);
        }
        Self::checked(program, flags, action.as_deref())
    }

    fn checked(program: String, flags: Flags, action: Option<&str>) -> Result<Self, ArgsError> {
        let action = match action {
            _ if flags.version => Action::Version,
            _ if flags.info => Action::Info,
            Some("start") => Action::Start,
            Some("delete") => Action::Delete,
            None | Some("") => Action::Serve,
            Some(other) => return Err(ArgsError::Usage(format!("unknown action: {other:?}"))),
        };
        let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
        let args = Self {
            program,
            action,
            namespace: flags.namespace,
            id: flags.id,
            address: flags.address,
            bundle: path(flags.bundle),
            debug: flags.debug,
            socket: path(flags.socket),
        };
        let by_containerd = matches!(action, Action::Start | Action::Delete | Action::Serve);
        if by_containerd && args.namespace.is_empty() {
            return Err(ArgsError::Missing("shim namespace cannot be empty"));
        }
        if by_containerd && action != Action::Serve && args.id.is_empty() {
            return Err(ArgsError::Missing("shim id cannot be empty"));
        }
        for (name, value) in [("namespace", &args.namespace), ("id", &args.id)] {
            if by_containerd && (value.contains('/') || value == "." || value == "..") {
                return Err(ArgsError::Usage(format!("invalid shim {name} {value:?}")));
            }
        }
        Ok(args)
    }
}

fn read_flag(
    flags: &mut Flags,
    flag: &str,
    words: &mut impl Iterator<Item = String>,
) -> Result<(), ArgsError> {
    let (name, value) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (flag, None),
    };
    if let Some(text) = flags.text(name) {
        let missing = || ArgsError::Usage(format!("flag needs an argument: -{name}"));
        *text = value.or_else(|| words.next()).ok_or_else(missing)?;
    } else if let Some(switch) = flags.switch(name) {
        // The words that Go's strconv.ParseBool takes.
        *switch = match value.as_deref() {
            None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => true,
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => false,
            Some(other) => {
                let message = format!("invalid boolean value {other:?} for -{name}");
                return Err(ArgsError::Usage(message));
            }
        };
    } else {
        return Err(ArgsError::Usage(format!("flag provided but not defined: -{name}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, ArgsError> {
        Args::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn command_lines_of_every_containerd() {
        let old = parse(
            "/usr/bin/shim -namespace ns -address /run/c.sock -publish-binary /usr/bin/containerd \
             -id c1 -debug start",
        )
        .unwrap();
        assert_eq!((old.action, old.debug), (Action::Start, true));
        assert_eq!((old.namespace.as_str(), old.id.as_str()), ("ns", "c1"));
        assert_eq!((old.program.as_str(), old.address.as_str()), ("shim", "/run/c.sock"));
        let new = parse("shim --namespace=ns -id=c1 -bundle /b -address= delete more").unwrap();
        assert_eq!((new.action, new.bundle), (Action::Delete, Some(PathBuf::from("/b"))));
        let serve = parse("shim -namespace ns -id c1 -socket /s -debug=false").unwrap();
        assert_eq!((serve.action, serve.debug), (Action::Serve, false));
        for version in ["shim -v", "shim -version", "shim --version start"] {
            assert_eq!(parse(version).unwrap().action, Action::Version);
        }
        assert_eq!(parse("shim -info").unwrap().action, Action::Info);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let usage = |line: &str| match parse(line).unwrap_err() {
            ArgsError::Usage(message) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(usage("shim -frob start"), "flag provided but not defined: -frob");
        assert_eq!(usage("shim -namespace"), "flag needs an argument: -namespace");
        assert_eq!(usage("shim -debug=2 start"), r#"invalid boolean value "2" for -debug"#);
        assert_eq!(usage("shim -namespace n -id i stop"), r#"unknown action: "stop""#);
        assert_eq!(usage("shim -namespace n -id ../i start"), r#"invalid shim id "../i""#);
        assert_eq!(
            parse("shim -id c start").unwrap_err(),
            ArgsError::Missing("shim namespace cannot be empty")
        );
        assert_eq!(
            parse("shim -namespace n start").unwrap_err(),
            ArgsError::Missing("shim id cannot be empty")
        );
        assert_eq!(parse("shim").unwrap_err(), ArgsError::Help);
        assert_eq!(parse("shim -h").unwrap_err(), ArgsError::Help);
    }
}
