//! Tests with real mounts, each in a mount namespace of its own. They need root.

mod devices;
mod layers;
mod making;
mod unmounting;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};

use super::*;

/// Says that this machine cannot run a test: to its reader, and to the list that the caller keeps.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
    if let Some(list) = std::env::var_os("SKIPPED") {
        let mut list = File::options().append(true).create(true).open(list).unwrap();
        writeln!(list, "{why}").unwrap();
    }
}

/// Runs a test in a fresh directory and a mount namespace that ends with it.
fn apart(test: impl FnOnce(&Path) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        return skip("mounts: not root");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        // A filesystem of its own: one that takes every kind of mount on top.
        nix::mount::mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>)
            .unwrap();
        test(&path);
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

fn mount_of(type_: &str, source: impl AsRef<Path>, options: &[&str]) -> Mount {
    Mount {
        type_: type_.into(),
        source: source.as_ref().display().to_string(),
        target: String::new(),
        options: options.iter().map(|&option| option.to_owned()).collect(),
    }
}

fn bind(source: impl AsRef<Path>, options: &[&str]) -> Mount {
    mount_of("bind", source, &[&["rbind"], options].concat())
}

fn at(target: &str, mount: Mount) -> Mount {
    Mount { target: target.into(), ..mount }
}

fn make_all(rootfs: &Path, mounts: &[Mount]) -> Result<RootfsMounts> {
    mount_all(rootfs, mounts, &NoHelper)
}

/// A directory with a file in it that has its name.
fn marked(parent: &Path, name: &str) -> PathBuf {
    let directory = parent.join(name);
    fs::create_dir_all(&directory).unwrap();
    let mark = directory.file_name().unwrap().to_owned();
    fs::write(directory.join(mark), "").unwrap();
    directory
}

fn rootfs(parent: &Path) -> PathBuf {
    let rootfs = parent.join("rootfs");
    fs::create_dir(&rootfs).unwrap();
    rootfs
}

/// Options and optional fields of the topmost mount at a place.
fn told_of(place: &Path) -> Option<String> {
    let table = fs::read_to_string(mountinfo::OWN_MOUNTS).unwrap();
    let here =
        |line: &&str| mountinfo::Entry::parse(line.as_bytes()).unwrap().mount_point() == place;
    let words = |line: &str| line.split(' ').skip(5).collect::<Vec<_>>().join(" ");
    table.lines().rfind(here).map(words)
}

fn mounted_within(place: &Path) -> usize {
    let mut count = 0;
    let visit = |entry: mountinfo::Entry<'_>| count += usize::from(entry.is_within(place));
    mountinfo::for_each(Path::new(mountinfo::OWN_MOUNTS), visit).unwrap();
    count
}
