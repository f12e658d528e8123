//! Holds the pages of faults against the tests that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PAGES: [&str; 2] =
    [include_str!("../../docs/defects.md"), include_str!("../../docs/defects-manager.md")];

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

/// The names in code quotes in the last column of a page's tables, but for those of files.
fn named(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit(" | ").next());
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.filter(|name| !name.ends_with(".rs")).collect()
}

#[test]
fn every_test_on_the_pages_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut known = BTreeSet::new();
    for crate_dir in ["proto", "shim-runc", "runtime-v2", "integration"] {
        for dir in ["src", "tests"].map(|dir| root.join(crate_dir).join(dir)) {
            if dir.exists() {
                functions(&dir, &mut known);
            }
        }
    }
    for page in PAGES {
        let named = named(page);
        assert!(named.len() > 50, "the page is read wrongly: {}", named.len());
        let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
