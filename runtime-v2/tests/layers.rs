//! The order of the rooms, as the documentation of each library and of the daemon lists them, is
//! kept: a room uses those before it, and its neighbours in the same line. `ARCHITECTURE.md` has
//! the same rooms in the same order.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Each with the file whose documentation has its order, and the least number of uses that it has
/// if all are found.
const HOUSES: [(&str, usize); 5] = [
    ("proto/src/lib.rs", 3),
    ("runtime-v2/src/lib.rs", 50),
    ("runtime-v2/src/bin/containerd-task-manager/main.rs", 30),
    ("shim-runc/src/lib.rs", 50),
    ("integration/src/lib.rs", 50),
];

/// Of the harness.
const MACROS: [&str; 2] = ["ensure", "ensure_eq"];

/// Rooms by their line in the documentation's list.
fn documented(lib: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    let (mut line, mut within) = (0, false);
    for text in lib.lines().filter_map(|text| text.strip_prefix("//!")) {
        let numbered =
            text.trim_start().split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
        let begins = text.starts_with(" * ") || numbered;
        line += usize::from(begins);
        within = begins || (within && text.starts_with("   "));
        for name in text.split('`').skip(1).step_by(2).filter(|_| within) {
            lines.entry(name.to_owned()).or_insert(line);
        }
    }
    lines
}

/// What follows `crate::`: one name, or the first names of a list in braces.
fn used(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, mark) in code.match_indices("crate::") {
        let rest = &code[at + mark.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(first_word(rest));
            continue;
        };
        let (mut depth, mut begin) = (0, 0);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.insert(first_word(&list[begin..at]));
                    begin = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// What is in the root file itself and so below everything: modules with a body, names of other
/// crates. A macro is seen by its crate's root too, wherever it is written.
fn modules_of(root: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in root.lines() {
        if let Some(name) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(" {")) {
            found.insert(name.to_owned());
        }
        if let Some(path) = line.strip_prefix("pub use ").and_then(|rest| rest.strip_suffix(';')) {
            let name = path.rsplit_once(" as ").map_or(path, |(_, name)| name);
            found.insert(name.rsplit("::").next().unwrap_or(name).to_owned());
        }
    }
    found
}

/// Modules of the root file that are tests and no rooms.
fn tests_of(root: &str) -> BTreeSet<String> {
    let mut lines = root.lines();
    let mut found = BTreeSet::new();
    while lines.any(|line| line == "#[cfg(test)]") {
        let module = lines.next().and_then(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        found.extend(module.map(str::to_owned));
    }
    found
}

/// The sources of a library, without those of its tests.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let own = dirs.into_iter().filter(|dir| !dir.ends_with("bin"));
    let named =
        |path: &PathBuf, name: &str| path.file_name().unwrap().to_str().unwrap().ends_with(name);
    let files = files.into_iter().filter(|path| {
        named(path, ".rs")
            && !["lib.rs", "main.rs", "tests.rs"].iter().any(|name| named(path, name))
    });
    files.chain(own.flat_map(|dir| sources(&dir))).collect()
}

/// The code of a file, without comments and without what is compiled for tests only.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if line.trim_start() != "#[cfg(test)]" {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        // One item, as rustfmt lays it out: a line, or all up to the brace in the same column.
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let item = lines.find(|line| !line.trim_start().starts_with("#["));
        if item.is_some_and(|item| item.ends_with('{')) {
            lines.find(|line| *line == end);
        }
    }
    code
}

/// How far a file's module is below the root of its crate.
fn depth_of(place: &Path) -> usize {
    place.components().count() - usize::from(place.ends_with("mod.rs"))
}

/// The rooms in the first column of the table below a heading, each with its row.
fn tabled(text: &str, heading: &str) -> BTreeMap<String, usize> {
    let section = text.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.map(|row| row.split(" |").next().unwrap()).enumerate();
    names
        .flat_map(|(row, names)| names.split("`, `").map(move |name| (name, row)))
        .map(|(name, row)| (name.trim_end_matches('`').to_owned(), row))
        .collect()
}

#[test]
fn architecture_has_the_same_rooms_in_the_same_order() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(top.join("ARCHITECTURE.md")).unwrap();
    for (heading, root) in
        [("The shim", "shim-runc/src/lib.rs"), ("The task manager", "runtime-v2/src/lib.rs")]
    {
        let table = tabled(&page, heading);
        let text = fs::read_to_string(top.join(root)).unwrap();
        // Others than modules are in the text of a line, and what serves tests is in no table.
        let rooms: Vec<(String, usize)> = documented(&text)
            .into_iter()
            .filter(|(name, _)| name != "foreign" && text.contains(&format!("mod {name};")))
            .collect();
        let named: BTreeSet<&String> = rooms.iter().map(|(name, _)| name).collect();
        assert_eq!(table.keys().collect::<BTreeSet<_>>(), named, "{heading}: the rooms");
        for (lower, at) in &rooms {
            for (upper, _) in rooms.iter().filter(|(_, above)| above > at) {
                assert!(table[lower] <= table[upper], "{heading}: {lower} is below {upper}");
            }
        }
    }
}

#[test]
fn what_is_for_tests_only_is_left_out_and_all_else_is_not() {
    let text = "use crate::a;\n#[cfg(test)]\nmod tests;\nuse super::b;\n#[cfg(test)]\nmod x {\n    \
                use crate::c;\n}\nuse crate::{d, e::f};\n";
    let code = code_of(text).replace("super::", "crate::");
    assert_eq!(used(&code), ["a", "b", "d", "e"].map(str::to_owned).into());
    assert_eq!(
        ["a.rs", "a/mod.rs", "a/b.rs", "a/b/mod.rs"].map(|p| depth_of(p.as_ref())),
        [1, 1, 2, 2]
    );
}

#[test]
fn rooms_use_only_what_is_below_them() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (root, least) in HOUSES {
        let src = top.join(root).parent().unwrap().to_path_buf();
        let text = fs::read_to_string(top.join(root)).unwrap();
        let order = documented(&text);
        let (in_root, tests) = (modules_of(&text), tests_of(&text));
        let mut seen = 0;
        for file in sources(&src) {
            let place = file.strip_prefix(&src).unwrap();
            let room = place.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
            if tests.contains(room) {
                continue;
            }
            let line = order.get(room).unwrap_or_else(|| panic!("{root}: {room} is in no line"));
            let text = fs::read_to_string(&file).unwrap();
            // The root can be named from below, too.
            let code = code_of(&text).replace(&"super::".repeat(depth_of(place)), "crate::");
            for name in used(&code) {
                if in_root.contains(&name) || MACROS.contains(&name.as_str()) {
                    continue;
                }
                let below = order.get(&name).unwrap_or_else(|| panic!("{root}: {name}: no line"));
                assert!(below <= line, "{root}: {} uses {name}, which is above", place.display());
                seen += 1;
            }
        }
        assert!(seen >= least, "{root}: {seen} uses are too few to be all");
    }
}
