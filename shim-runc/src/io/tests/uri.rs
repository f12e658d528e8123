use std::{ffi::OsString, os::unix::ffi::OsStrExt as _, path::PathBuf};

use proptest::prelude::*;
use runtime_proto::errdefs::Code;

use super::super::uri::{LoggingUri, Target};

fn parse(uri: &str) -> Target {
    Target::parse(uri).unwrap()
}

fn refused(uri: &str) -> String {
    let error = Target::parse(uri).unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument, "{uri}");
    error.to_string()
}

fn logging(program: &str, args: &[&str], strict: bool) -> Target {
    let args = args.iter().map(OsString::from).collect();
    Target::Binary(LoggingUri { program: program.into(), args, strict })
}

#[test]
fn paths_without_scheme_are_taken_as_they_are() {
    assert_eq!(parse(""), Target::Null);
    for path in ["/run/x/box-stdout", "relative", "/a%20b", "/odd:name", "./odd:name", "1x:y"] {
        assert_eq!(parse(path), Target::Path(path.into()));
    }
}

#[test]
fn schemes_name_transports() {
    assert_eq!(parse("fifo:///run/a%20b"), Target::Path("/run/a b".into()));
    assert_eq!(parse("file:///var/log/x.log"), Target::File("/var/log/x.log".into()));
    assert_eq!(parse("FILE:/var/log/x+y?a=b#c"), Target::File("/var/log/x+y".into()));
    assert_eq!(parse("file://host/x"), Target::File("/x".into()));
    assert_eq!(parse("binary:///bin/log"), logging("/bin/log", &[], false));
    assert_eq!(parse("binary-v2:///bin/log"), logging("/bin/log", &[], true));
}

#[test]
fn query_becomes_arguments_in_order() {
    assert_eq!(
        parse("binary:///l?z=1&a=&m&z=2&&sp+ace=%2B%26&bad=%zz&semi;colon=1#f?x=y"),
        logging("/l", &["z", "1", "a", "", "m", "", "sp ace", "+&"], false),
    );
}

#[test]
fn a_long_query_is_read_in_one_pass() {
    // As long as a message may be. Each key against all before it would take hours.
    let query: Vec<String> = (0..400_000).map(|number| format!("k{number}")).collect();
    let Target::Binary(uri) = parse(&format!("binary:///x?{}", query.join("&"))) else {
        panic!("no logging binary");
    };
    assert_eq!(uri.args.len(), 800_000);
}

#[test]
fn refusals_say_what_is_wrong() {
    assert_eq!(refused("ttrpc+unix:///s"), "unknown STDIO scheme ttrpc+unix");
    assert_eq!(refused("http://x/y"), "unknown STDIO scheme http");
    refused(":/x");
    refused("file:///a%2");
    refused("file:///a%gg");
    refused("file://");
    refused("file:relative");
    refused("fifo://host");
    refused("binary:///x%00y");
    refused("binary:///x?a=%00");
    refused("/a\0b");
}

fn escaped(text: &[u8]) -> String {
    text.iter().map(|byte| format!("%{byte:02X}")).collect()
}

proptest! {
    #[test]
    fn any_string_is_understood_or_refused(uri in "\\PC*") {
        let _ = Target::parse(&uri);
    }

    #[test]
    fn any_tail_of_a_known_scheme_is_understood_or_refused(
        scheme in "fifo|file|binary|binary-v2",
        tail in "[/?#&=%;+a-f0-9:]{0,40}",
    ) {
        match Target::parse(&format!("{scheme}:{tail}")) {
            Ok(Target::Path(path) | Target::File(path)) => prop_assert!(path.is_absolute()),
            Ok(Target::Binary(logging)) => {
                prop_assert!(logging.program.is_absolute());
                prop_assert_eq!(logging.args.len() % 2, 0);
            }
            Ok(Target::Null) => prop_assert!(false, "a scheme is not nothing"),
            Err(error) => prop_assert_eq!(error.kind(), Code::InvalidArgument),
        }
    }

    #[test]
    fn escaping_hides_no_byte(path in prop::collection::vec(1_u8.., 1..40)) {
        let expected = [b"/".as_slice(), &path].concat();
        match Target::parse(&format!("file:///{}", escaped(&path))).unwrap() {
            Target::File(found) => prop_assert_eq!(found.as_os_str().as_bytes(), expected),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn arguments_survive_escaping(
        pairs in prop::collection::btree_map("\\PC{1,8}", "\\PC{0,8}", 0..6),
    ) {
        let query: Vec<_> = pairs
            .iter()
            .map(|(key, value)| {
                format!("{}={}", escaped(key.as_bytes()), escaped(value.as_bytes()))
            })
            .collect();
        let expected: Vec<_> =
            pairs.iter().flat_map(|(key, value)| [key, value]).map(OsString::from).collect();
        match Target::parse(&format!("binary:///l?{}", query.join("&"))).unwrap() {
            Target::Binary(logging) => {
                prop_assert_eq!(logging.program, PathBuf::from("/l"));
                prop_assert_eq!(logging.args, expected);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn plain_paths_are_left_alone(path in "/[^\\x00]{0,40}") {
        prop_assert_eq!(Target::parse(&path).unwrap(), Target::Path(path.into()));
    }
}
