use runtime_proto::errdefs::Code;

use super::super::plan::{Output, Plan};

fn plan(stdin: &str, stdout: &str, stderr: &str) -> Plan {
    Plan::new(stdin, stdout, stderr, false).unwrap()
}

#[test]
fn nothing_asked_is_nothing_opened() {
    let plan = plan("", "", "");
    assert_eq!(
        plan,
        Plan { stdin: None, stdout: Output::Null, stderr: Output::Null, logger: None }
    );
}

#[test]
fn each_stream_is_read_on_its_own() {
    let plan = plan("/in", "file:///out", "/err");
    assert_eq!(plan.stdin, Some("/in".into()));
    assert_eq!(plan.stdout, Output::File("/out".into()));
    assert_eq!(plan.stderr, Output::Path("/err".into()));
}

#[test]
fn a_logger_behind_stdout_takes_stderr_too() {
    for stderr in ["", "/err", "binary:///other", "nonsense://x"] {
        let plan = plan("", "binary:///log", stderr);
        assert_eq!((&plan.stdout, &plan.stderr), (&Output::Logger, &Output::Logger));
        assert_eq!(plan.logger.unwrap().program.to_str(), Some("/log"));
    }
}

#[test]
fn a_logger_may_have_stderr_alone() {
    let plan = plan("", "/out", "binary:///log");
    assert_eq!(plan.stdout, Output::Path("/out".into()));
    assert_eq!(plan.stderr, Output::Logger);
    assert!(plan.logger.is_some());
}

#[test]
fn a_terminal_has_one_output() {
    let plan = Plan::new("/in", "/out", "nonsense://x", true).unwrap();
    assert_eq!(plan.stdout, Output::Path("/out".into()));
    assert_eq!(plan.stderr, Output::Null);
}

#[test]
fn refusals_name_the_stream() {
    for (stdin, stdout, stderr, text) in [
        ("odd://x", "", "", "stdin: unknown STDIO scheme odd"),
        ("", "odd://x", "", "stdout: unknown STDIO scheme odd"),
        ("", "/out", "odd://x", "stderr: unknown STDIO scheme odd"),
        ("binary:///l", "", "", "stdin cannot come from a logging binary"),
    ] {
        let error = Plan::new(stdin, stdout, stderr, false).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert_eq!(error.to_string(), text);
    }
}
