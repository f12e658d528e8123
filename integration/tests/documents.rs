//! What the pages for readers name is there: files, targets of make, configurations that containerd understands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use integration::containerd::SERIES;
use integration::failure::{Context, Result};
use integration::scenario::{scenario, skip};
use integration::{ensure, paths};

/// Every page of the workspace with its text.
fn pages() -> Result<Vec<(PathBuf, String)>> {
    let top = paths::workspace();
    let mut found = Vec::new();
    for dir in [top.clone(), top.join("docs"), top.join("docs/adr")] {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push((path.clone(), fs::read_to_string(&path)?));
            }
        }
    }
    ensure!(found.len() > 10, "{} pages are too few to be all", found.len());
    Ok(found)
}

/// The targets of `[text](target)` that are files.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files.map(|target| target.split('#').next().unwrap_or(target)).collect()
}

#[test]
fn links_between_pages_lead_somewhere() -> Result {
    let mut dead = Vec::new();
    for (page, text) in pages()? {
        let here = page.parent().unwrap_or(Path::new("/"));
        for link in links(&text).into_iter().filter(|link| !here.join(link).exists()) {
            dead.push(format!("{}: {link}", page.display()));
        }
    }
    ensure!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    Ok(())
}

/// The words after `make` where that is code: in backticks, or at the begin of an indented line.
fn targets(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let indented = text.lines().filter_map(|line| line.strip_prefix("    "));
    let calls = quoted.chain(indented).filter_map(|code| code.strip_prefix("make "));
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    calls
        .flat_map(|words| words.split_whitespace().take_while(|word| word.chars().all(is_name)))
        .collect()
}

#[test]
fn targets_of_make_that_pages_name_are_there() -> Result {
    let makefile = fs::read_to_string(paths::workspace().join("Makefile"))?;
    let mut missing = Vec::new();
    for (page, text) in pages()? {
        for target in targets(&text) {
            if !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))) {
                missing.push(format!("{}: make {target}", page.display()));
            }
        }
    }
    ensure!(missing.is_empty(), "no such targets:\n{}", missing.join("\n"));
    Ok(())
}

/// The indented blocks of the README that are tables of a CRI handler.
fn handlers(readme: &str) -> Vec<String> {
    let code = |line: &str| line.strip_prefix("    ").map(str::to_owned);
    let blocks = readme.split("\n\n").filter(|block| block.starts_with("    [plugins."));
    blocks.map(|block| block.lines().filter_map(code).collect::<Vec<_>>().join("\n")).collect()
}

#[test]
fn containerd_understands_the_handlers_of_the_readme() -> Result {
    let readme = fs::read_to_string(paths::workspace().join("README.md"))?;
    let handlers = handlers(&readme);
    scenario(async |fixture| {
        for series in SERIES {
            let Some(dir) = paths::containerd(series) else {
                skip(&format!("no containerd {series} in this machine's mirror"))?;
                continue;
            };
            let (version, plugin) = if series.starts_with('1') {
                (2, "io.containerd.grpc.v1.cri")
            } else {
                (3, "io.containerd.cri.v1.runtime")
            };
            let config = fixture.file("config.toml");
            let handler = handlers.iter().find(|handler| handler.contains(plugin));
            let handler = handler.cloned().unwrap_or_default();
            fs::write(&config, format!("version = {version}\n{handler}\n"))?;
            let output = Command::new(dir.join("containerd"))
                .arg("--config")
                .arg(&config)
                .args(["config", "dump"])
                .stdin(Stdio::null())
                .output()
                .context("containerd config dump")?;
            let dump = String::from_utf8_lossy(&output.stdout);
            let known = dump.contains("runc-rust") && dump.contains("/containerd-shim-runc-v2");
            ensure!(known, "containerd {series} makes of {handler:?}:\n{dump}");
        }
        Ok(())
    })
}
