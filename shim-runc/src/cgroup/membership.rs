//! Which cgroups a process is in: the lines of `/proc/<pid>/cgroup` (cgroups(7)).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One line: a hierarchy and the process's place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Membership {
    /// The controllers of a v1 hierarchy, or its name as `name=…`; empty for the v2 hierarchy.
    pub(crate) controllers: Vec<String>,
    /// The path from the root of the hierarchy, as this process's cgroup namespace shows it.
    pub(crate) path: PathBuf,
}

impl Membership {
    /// Whether this is the line of the v2 hierarchy.
    pub(crate) fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }
}

/// Reads all lines; those of another form are passed over.
pub(crate) fn parse(text: &[u8]) -> Vec<Membership> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Membership> {
    // The path is the rest of the line: it may hold colons of its own.
    let mut fields = line.splitn(3, |&byte| byte == b':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    if !path.starts_with(b"/") || (controllers.is_empty() && id != b"0") {
        return None;
    }
    let controllers = str::from_utf8(controllers).ok()?;
    Some(Membership {
        controllers: controllers.split(',').filter(|c| !c.is_empty()).map(str::to_owned).collect(),
        path: Path::new(OsStr::from_bytes(path)).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(controllers: &[&str], path: &str) -> Membership {
        Membership {
            controllers: controllers.iter().map(|&c| c.to_owned()).collect(),
            path: path.into(),
        }
    }

    #[test]
    fn legacy_hybrid_and_unified_lines_are_told_apart() {
        let hybrid = b"11:cpu,cpuacct:/pod/c1\n4:memory:/x\n1:name=systemd:/init.scope\n0::/y\n";
        assert_eq!(
            parse(hybrid),
            [
                one(&["cpu", "cpuacct"], "/pod/c1"),
                one(&["memory"], "/x"),
                one(&["name=systemd"], "/init.scope"),
                one(&[], "/y"),
            ]
        );
        assert_eq!(parse(b"0::/user.slice"), [one(&[], "/user.slice")]);
        assert!(parse(b"0::/y")[0].is_v2());
    }

    #[test]
    fn colons_belong_to_the_path() {
        assert_eq!(parse(b"4:memory:/a:b:/c"), [one(&["memory"], "/a:b:/c")]);
        assert_eq!(parse(b"0::/system.slice:x:y"), [one(&[], "/system.slice:x:y")]);
    }

    #[test]
    fn lines_of_another_form_are_passed_over() {
        for text in ["", "\n\n", "4:memory", "4", "4:memory:relative", "7::/not-zero", "::"] {
            assert_eq!(parse(text.as_bytes()), [], "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            for membership in parse(&text) {
                prop_assert!(membership.path.is_absolute());
            }
        }
    }
}
