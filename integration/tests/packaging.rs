//! What people install: by make, as a Debian package, by a DaemonSet; and what the pages say of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use integration::containerd::SERIES;
use integration::failure::{Context, Failure, Result};
use integration::fixture::Fixture;
use integration::leak::MARKER;
use integration::scenario::{scenario, skip};
use integration::{ensure, ensure_eq, image, paths};
use yaml_rust2::{Yaml, YamlLoader};

fn packaging() -> PathBuf {
    paths::workspace().join("packaging")
}

fn run(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().context(format!("{command:?}"))
}

/// Runs a command that has to succeed; gives what it prints.
fn must(command: &mut Command) -> Result<String> {
    let output = run(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn has(program: &str) -> bool {
    Command::new("which").arg(program).output().is_ok_and(|output| output.status.success())
}

/// Every file below a directory, and every directory.
fn tree(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(tree(&path)?);
        }
        found.insert(path);
    }
    Ok(found)
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(tree(dir)?.into_iter().filter(|path| path.is_file()).collect())
}

#[test]
fn what_is_installed_can_be_removed_without_a_trace() -> Result {
    scenario(async |fixture| {
        let root = fixture.file("install");
        let script = |action: &str| {
            must(
                Command::new(paths::workspace().join("scripts/install"))
                    .arg(action)
                    .env("SHIM", paths::shim()?)
                    .env("MANAGER", paths::manager()?)
                    .env("PREFIX", "/opt/x")
                    .env("DESTDIR", &root),
            )
        };
        script("install")?;
        let once = tree(&root)?;
        script("install")?;
        ensure_eq!(tree(&root)?, once, "the second install");
        for file in files(&root)? {
            let text = fs::read(&file)?;
            let text = String::from_utf8_lossy(&text);
            ensure!(!text.contains("@SHIMDIR@"), "{} has a place left open", file.display());
            ensure!(!text.contains(&root.display().to_string()), "{}: DESTDIR", file.display());
        }
        let prefix = root.join("opt/x");
        let unit = prefix.join("lib/systemd/system/containerd-task-manager.service");
        let unit = fs::read_to_string(unit)?;
        ensure!(unit.contains("ExecStart=/opt/x/bin/containerd-task-manager serve\n"), "{unit}");
        ensure!(unit.contains("PATH=/opt/x/libexec/containerd-rust:"), "{unit}");
        let shim = prefix.join("libexec/containerd-rust/containerd-shim-runc-v2");
        ensure!(must(Command::new(shim).arg("-v"))?.contains("Version"), "the shim runs");
        script("uninstall")?;
        ensure_eq!(files(&root)?, Vec::<PathBuf>::new(), "files after uninstall");
        let ours = tree(&root)?.into_iter().find(|dir| dir.ends_with("containerd-rust"));
        ensure_eq!(ours, None, "a directory of ours");
        Ok(())
    })
}

/// `-flags` in a text, with one dash.
fn flags(text: &str) -> BTreeSet<String> {
    let is_flag = |c: char| c.is_ascii_lowercase() || c == '-';
    text.split(|c: char| !is_flag(c))
        .filter_map(|word| word.strip_prefix('-'))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_shims_man_page_has_the_flags_that_the_shim_tells_of() -> Result {
    if paths::is_go_shim() {
        return skip("the page is of this shim");
    }
    let output = run(Command::new(paths::shim()?).arg("-h"))?;
    let page = fs::read_to_string(packaging().join("man/containerd-shim-runc-v2.8"))?;
    let page = page.replace("\\-", "-");
    let options = page.split(".SH OPTIONS").nth(1).and_then(|rest| rest.split(".SH ").next());
    let documented = flags(&options.unwrap_or_default().replace("\\fR", " "));
    let missing: Vec<String> = flags(&String::from_utf8_lossy(&output.stderr))
        .into_iter()
        .filter(|flag| !documented.contains(flag) && flag != "runtime")
        .collect();
    ensure!(missing.is_empty(), "the man page lacks {missing:?}");
    Ok(())
}

#[test]
fn the_shim_without_arguments_explains_itself_and_says_nothing_on_stdout() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim takes it for a start without a namespace");
    }
    let output = run(&mut Command::new(paths::shim()?))?;
    ensure_eq!(output.status.code(), Some(1), "exit code");
    ensure!(output.stdout.is_empty(), "stdout is protocol");
    let text = String::from_utf8_lossy(&output.stderr);
    for word in ["containerd starts it", "--runtime", "runtime_path", "-namespace"] {
        ensure!(text.contains(word), "{word} is not in {text}");
    }
    Ok(())
}

#[test]
fn man_pages_are_understood_by_man() -> Result {
    if !has("man") {
        return skip("no man on this machine");
    }
    for page in files(&packaging().join("man"))? {
        if page.extension().is_some_and(|extension| extension == "8") {
            let output = run(Command::new("man")
                .args(["--warnings", "-l"])
                .arg(&page)
                .env("LC_ALL", "C.UTF-8")
                .env("MANWIDTH", "80"))?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success() && said.is_empty(), "{}: {said}", page.display());
        }
    }
    Ok(())
}

fn yaml(name: &str) -> Result<Yaml> {
    let path = packaging().join("kubernetes").join(name);
    let mut documents = YamlLoader::load_from_str(&fs::read_to_string(&path)?)?;
    ensure_eq!(documents.len(), 1, "documents of {name}");
    documents.pop().ok_or_else(|| Failure::new("no document"))
}

#[test]
fn manifests_are_whole_and_speak_of_the_same_things() -> Result {
    let set = yaml("daemonset.yaml")?;
    ensure_eq!(set["apiVersion"].as_str(), Some("apps/v1"), "apiVersion");
    ensure_eq!(set["kind"].as_str(), Some("DaemonSet"), "kind");
    let (spec, pod) = (&set["spec"], &set["spec"]["template"]);
    let labels = &pod["metadata"]["labels"];
    ensure!(!labels.is_badvalue(), "the pods have no labels");
    ensure_eq!(&spec["selector"]["matchLabels"], labels, "the selector");
    ensure_eq!(pod["spec"]["hostPID"].as_bool(), Some(true), "hostPID");
    let containers = ["initContainers", "containers"]
        .map(|list| pod["spec"][list].as_vec().cloned().unwrap_or_default());
    let tag = concat!("containerd-rust-installer:", env!("CARGO_PKG_VERSION"));
    for container in containers.iter().flatten() {
        ensure_eq!(container["image"].as_str(), Some(tag), "the image, by this version");
    }
    let install = &containers[0][0];
    ensure_eq!(install["command"][0].as_str(), Some("/install"), "the command");
    let mount = &install["volumeMounts"][0];
    ensure_eq!(mount["mountPath"].as_str(), Some("/host"), "the default of HOST");
    ensure_eq!(&mount["name"], &pod["spec"]["volumes"][0]["name"], "the volume");
    let class = yaml("runtimeclass.yaml")?;
    ensure_eq!(class["kind"].as_str(), Some("RuntimeClass"), "kind");
    ensure_eq!(class["handler"].as_str(), Some("runc-rust"), "the default of HANDLER");
    Ok(())
}

/// A node's root file system, as the installer sees it.
struct Node<'a> {
    root: PathBuf,
    containerd: PathBuf,
    fixture: &'a Fixture,
}

impl Node<'_> {
    fn config(&self) -> PathBuf {
        self.root.join("etc/containerd/config.toml")
    }

    /// Runs the installer; says whether it would have restarted containerd.
    fn run(&self, action: &str) -> Result<bool> {
        let version = must(Command::new(&self.containerd).arg("--version"))?;
        let version = version.split_whitespace().nth(2).unwrap_or_default();
        let restarted = self.fixture.file("restarted");
        let _ = fs::remove_file(&restarted);
        must(
            Command::new("sh")
                .arg(packaging().join("kubernetes/install"))
                .arg(action)
                .env("HOST", &self.root)
                .env("SHIM", paths::shim()?)
                .env("VERSION", version.trim_start_matches('v'))
                .env("RESTART", format!("touch {}", restarted.display())),
        )?;
        Ok(restarted.exists())
    }

    /// What containerd itself makes of its configuration.
    fn understood(&self) -> Result<String> {
        let config = fs::read_to_string(self.config())?;
        // The paths that it imports are those of the node.
        let seen = self.fixture.file("seen.toml");
        let drop_ins = self.root.join("etc/containerd/conf.d");
        fs::write(
            &seen,
            config.replace("/etc/containerd/conf.d", &drop_ins.display().to_string()),
        )?;
        must(Command::new(&self.containerd).arg("--config").arg(&seen).args(["config", "dump"]))
    }
}

/// With and without what later containerds import by themselves.
const MAIN: [(&str, &str); 3] = [
    ("1", CNI_OF_ITS_OWN),
    (
        "2",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dirs = ['/usr/lib/own-cni']\n",
    ),
    (
        "2",
        "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dirs = ['/usr/lib/own-cni']\n",
    ),
];

const CNI_OF_ITS_OWN: &str = "version = 2\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    \
    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/own-cni\"\n";

#[test]
fn the_installer_tells_each_containerd_of_the_handler_and_takes_back_every_byte() -> Result {
    scenario(async |fixture| {
        for series in SERIES {
            let Some(dir) = paths::containerd(series) else {
                skip(&format!("no containerd {series} in this machine's mirror"))?;
                continue;
            };
            for (number, (_, main)) in
                MAIN.iter().enumerate().filter(|(_, (major, _))| series.starts_with(major))
            {
                let root = fixture.file(&format!("node-{series}-{number}"));
                let node = Node { root, containerd: dir.join("containerd"), fixture };
                fs::create_dir_all(node.root.join("etc/containerd"))?;
                fs::write(node.config(), main)?;
                install_and_remove(&node, main)
                    .context(format!("containerd {series}, {main:?}"))?;
            }
        }
        Ok(())
    })
}

fn install_and_remove(node: &Node<'_>, main: &str) -> Result {
    let before = tree(&node.root)?;
    ensure!(node.run("install")?, "containerd is not restarted");
    let dump = node.understood()?;
    // The handler that it has built in is there beside ours: its name is followed by a quote or a bracket.
    let runc = dump.split("containerd.runtimes.").any(|rest| {
        let name = rest.trim_start_matches(['\'', '"']);
        name.strip_prefix("runc").is_some_and(|rest| rest.starts_with(['\'', '"', ']']))
    });
    ensure!(runc, "the handler runc is lost:\n{dump}");
    for word in ["runc-rust", "/opt/containerd-rust/containerd-shim-runc-v2", "/usr/lib/own-cni"] {
        ensure!(dump.contains(word), "{word} is not in what containerd understands:\n{dump}");
    }
    ensure!(!node.run("install")?, "the second time, something changes");
    ensure!(node.root.join("opt/containerd-rust/containerd-shim-runc-v2").exists(), "no shim");
    ensure!(node.run("remove")?, "containerd is not restarted");
    ensure_eq!(fs::read_to_string(node.config())?.as_str(), main, "the configuration");
    let left: Vec<PathBuf> = tree(&node.root)?.difference(&before).cloned().collect();
    let left: Vec<&PathBuf> = left.iter().filter(|path| path.is_file()).collect();
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

#[test]
fn the_debian_package_installs_runs_and_purges_in_a_clean_root() -> Result {
    for program in ["debootstrap", "unshare"] {
        if !has(program) {
            return skip(&format!("no {program} on this machine"));
        }
    }
    let Some(package) = package()? else {
        return skip("no package of these programs: make deb");
    };
    scenario(async |fixture| {
        let archive = fixture.file("image.tar");
        image::write(&archive)?;
        let root = fixture.file("clean");
        fs::create_dir_all(&root)?;
        let output = run(Command::new(packaging().join("try-deb"))
            .args([&package, &archive, &root])
            .env(MARKER, fixture.namespace()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Ok(())
    })
}

/// The newest package that `make deb` made, if it is not older than the programs.
fn package() -> Result<Option<PathBuf>> {
    let Ok(entries) = fs::read_dir(paths::workspace().join("target/debian")) else {
        return Ok(None);
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push((path.metadata()?.modified()?, path));
        }
    }
    let programs = [paths::shim()?, paths::manager()?];
    let built = programs.iter().filter_map(|path| path.metadata().ok()?.modified().ok()).max();
    let newest = found.into_iter().max().filter(|(made, _)| Some(*made) >= built);
    Ok(newest.map(|(_, path)| path))
}
