//! Holds the page of faults against the tests that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGE: &str = include_str!("../../docs/defects.md");

/// The names of all functions in the sources below a directory.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("a directory of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let names = text.split("fn ").skip(1);
            let name = |rest: &str| {
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned)
            };
            found.extend(names.filter_map(name));
        }
    }
}

#[test]
fn every_test_on_the_page_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut known = BTreeSet::new();
    for dir in
        ["proto/src", "shim-runc/src", "shim-runc/tests", "integration/src", "integration/tests"]
    {
        functions(&root.join(dir), &mut known);
    }
    let rows = PAGE.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| kind"));
    let tests = rows
        .flat_map(|row| row.rsplit(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2));
    let named: Vec<&str> = tests.collect();
    assert!(named.len() > 100, "the page is read wrongly");
    let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
