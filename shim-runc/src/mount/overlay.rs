//! Overlay mounts that one call of mount(2) cannot express: more layers than fit into the page that
//! it takes, and layers whose ids are mapped.
//!
//! Since Linux 6.7 each layer can be given by a call of its own, and the mount table shows all of
//! them by name. Before, every layer is opened and named as `/proc/self/fd/<n>`: short enough for
//! as many layers as the kernel takes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;
use nix::unistd::{SysconfVar, sysconf};
use runtime_proto::errdefs::Code;

use super::options::Options;
use super::syscall::{self, FsContext};
use super::{Mount, id_map, target};
use crate::error::{Error, Result};

/// The filesystem type.
pub(super) const TYPE: &str = "overlay";

/// The longest value that fsconfig(2) takes.
const LONGEST_VALUE: usize = 255;
/// Page size when the C library does not know.
const SMALLEST_PAGE: usize = 4096;

/// Whether mount(2) takes this data: one page, of which the last byte must be zero.
pub(super) fn fits(data: &[String]) -> bool {
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let page = page.and_then(|size| usize::try_from(size).ok()).unwrap_or(SMALLEST_PAGE);
    let separators = data.len().saturating_sub(1);
    data.iter().map(String::len).sum::<usize>() + separators < page
}

/// Mounts an overlay, its lower layers shown as `user_namespace` maps ids if one is given.
pub(super) fn mount(
    mount: &Mount,
    options: &Options,
    rootfs: &Path,
    target: BorrowedFd<'_>,
    user_namespace: Option<&OwnedFd>,
) -> Result<()> {
    let mut layers = Layers::parse(&options.data);
    let mapped = user_namespace.map(|namespace| layers.map_ids(rootfs, namespace)).transpose();
    let _mapped = mapped.map_err(|error| Error::io("map the ids of the layers", error))?;
    let attached = layers.configure(&mount.source, options.flags).and_then(|tree| {
        syscall::attach(tree.as_fd(), target)
            .map_err(|error| Error::io("attach the overlay", error))
    });
    // What a kernel says to calls that it is too old for is of many kinds.
    attached.or_else(|refused| {
        let mounted = layers.mount_by_descriptors(mount, options.flags, target);
        mounted.map_err(|error| error.within(format_args!("{refused}; then")))
    })
}

/// Options of an overlay, its layers taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Layers {
    /// From the top down.
    pub(crate) lower: Vec<PathBuf>,
    /// Layers that hold file contents only, below all others.
    pub(crate) data_only: Vec<PathBuf>,
    upper: Option<PathBuf>,
    work: Option<PathBuf>,
    rest: Vec<String>,
}

impl Layers {
    pub(crate) fn parse(data: &[String]) -> Self {
        let mut layers = Self::default();
        for option in data {
            match option.split_once('=') {
                Some(("lowerdir", paths)) => {
                    let mut is_data = false;
                    for path in split_unescaped(paths) {
                        // `lower::data` has an empty name between them.
                        match (path.as_os_str().is_empty(), is_data) {
                            (true, _) => is_data = true,
                            (false, true) => layers.data_only.push(path),
                            (false, false) => layers.lower.push(path),
                        }
                    }
                }
                Some(("upperdir", path)) => layers.upper = split_unescaped(path).next(),
                Some(("workdir", path)) => layers.work = split_unescaped(path).next(),
                _ => layers.rest.push(option.clone()),
            }
        }
        layers
    }

    /// Replaces the lower layers by mounts of them with mapped ids, which the result keeps.
    fn map_ids(&mut self, rootfs: &Path, namespace: &OwnedFd) -> io::Result<id_map::Staged> {
        let mut staged = id_map::Staged::beside(rootfs)?;
        for layer in self.lower.iter_mut().chain(&mut self.data_only) {
            *layer = staged.add(layer, namespace.as_fd())?;
        }
        Ok(staged)
    }

    /// Gives the layers to the kernel one by one; the result is not attached yet.
    fn configure(&self, source: &str, flags: MsFlags) -> Result<OwnedFd> {
        let context = FsContext::open(c"overlay").map_err(|error| Error::io("fsopen(2)", error))?;
        let opened = &mut Vec::new();
        for (key, layers) in [("lowerdir+", &self.lower), ("datadir+", &self.data_only)] {
            for layer in layers {
                set_path(&context, key, layer, opened)?;
            }
        }
        for (key, path) in [("upperdir", &self.upper), ("workdir", &self.work)] {
            if let Some(path) = path {
                set_path(&context, key, path, opened)?;
            }
        }
        set(&context, "source", Some(source.as_bytes()))?;
        let options = self.rest.iter().map(String::as_str);
        for option in options.chain(filesystem_flags(flags)) {
            match option.split_once('=') {
                Some((key, value)) => set(&context, key, Some(value.as_bytes()))?,
                None => set(&context, option, None)?,
            }
        }
        context.mount(attributes(flags)).map_err(|error| explained(&context, "overlay", error))
    }

    /// Mounts with every layer named by a descriptor.
    fn mount_by_descriptors(
        &self,
        mount: &Mount,
        flags: MsFlags,
        target: BorrowedFd<'_>,
    ) -> Result<()> {
        let mut opened = Vec::new();
        let mut name = |layer: &PathBuf| -> Result<String> {
            opened.push(open_layer(layer)?);
            Ok(opened.last().map(target::path_of).unwrap_or_default().display().to_string())
        };
        let mut lower = self.lower.iter().map(&mut name).collect::<Result<Vec<_>>>()?;
        for layer in &self.data_only {
            // The empty name makes two colons in a row.
            lower.extend([String::new(), name(layer)?]);
        }
        let mut data = vec![format!("lowerdir={}", lower.join(":"))];
        for (key, path) in [("upperdir", &self.upper), ("workdir", &self.work)] {
            if let Some(path) = path {
                data.push(format!("{key}={}", name(path)?));
            }
        }
        data.extend_from_slice(&self.rest);
        if !fits(&data) {
            let text = format!("{} layers are too many for this kernel", self.lower.len());
            return Err(Error::new(Code::InvalidArgument, text));
        }
        let (source, data) = (mount.source.as_str(), data.join(","));
        nix::mount::mount(
            Some(source),
            &target::path_of(&target),
            Some(TYPE),
            flags,
            Some(data.as_str()),
        )
        .map_err(|errno| Error::io("mount(2) with layers by descriptor", errno))
    }
}

/// Splits at colons; a backslash takes the meaning from what follows it.
fn split_unescaped(paths: &str) -> impl Iterator<Item = PathBuf> {
    let mut parts = vec![String::new()];
    let mut characters = paths.chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            ':' => {
                parts.push(String::new());
                continue;
            }
            '\\' => characters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(part) = parts.last_mut() {
            part.push(literal);
        }
    }
    parts.into_iter().map(PathBuf::from)
}

fn open_layer(layer: &Path) -> Result<OwnedFd> {
    open(layer, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io(format!("open layer {}", layer.display()), errno))
}

/// Sets a path, by way of a descriptor when it cannot be said in place.
fn set_path(context: &FsContext, key: &str, path: &Path, opened: &mut Vec<OwnedFd>) -> Result<()> {
    // In `upperdir` and `workdir` backslashes still escape, in the others nothing does.
    let plain = key.ends_with('+') || !path.as_os_str().as_bytes().contains(&b'\\');
    if path.as_os_str().len() <= LONGEST_VALUE && plain {
        return set(context, key, Some(path.as_os_str().as_bytes()));
    }
    let layer = open_layer(path)?;
    let name = target::path_of(&layer);
    opened.push(layer);
    set(context, key, Some(name.as_os_str().as_bytes()))
}

fn set(context: &FsContext, key: &str, value: Option<&[u8]>) -> Result<()> {
    let has_zero = |error| Error::caused(Code::InvalidArgument, format!("option {key}"), error);
    let c_key = CString::new(key).map_err(has_zero)?;
    let c_value = value.map(CString::new).transpose().map_err(has_zero)?;
    context.set(&c_key, c_value.as_deref()).map_err(|error| {
        let value = String::from_utf8_lossy(value.unwrap_or_default());
        explained(context, &format!("option {key} {value}"), error)
    })
}

fn explained(context: &FsContext, what: &str, error: io::Error) -> Error {
    match context.message() {
        Some(message) => Error::io(format!("{what} ({message})"), error),
        None => Error::io(what, error),
    }
}

/// Flags that are the filesystem's, as options.
fn filesystem_flags<'a>(flags: MsFlags) -> impl Iterator<Item = &'a str> {
    let words = [
        (MsFlags::MS_RDONLY, "ro"),
        (MsFlags::MS_SYNCHRONOUS, "sync"),
        (MsFlags::MS_DIRSYNC, "dirsync"),
        (MsFlags::MS_MANDLOCK, "mand"),
    ];
    words.into_iter().filter(move |(flag, _)| flags.contains(*flag)).map(|(_, word)| word)
}

/// Flags that are the mount's.
fn attributes(flags: MsFlags) -> u64 {
    let pairs = [
        (MsFlags::MS_RDONLY, libc::MOUNT_ATTR_RDONLY),
        (MsFlags::MS_NOSUID, libc::MOUNT_ATTR_NOSUID),
        (MsFlags::MS_NODEV, libc::MOUNT_ATTR_NODEV),
        (MsFlags::MS_NOEXEC, libc::MOUNT_ATTR_NOEXEC),
        (MsFlags::MS_NODIRATIME, libc::MOUNT_ATTR_NODIRATIME),
    ];
    // How access times are kept is one choice of several, not several flags.
    let access_time = match () {
        () if flags.contains(MsFlags::MS_STRICTATIME) => libc::MOUNT_ATTR_STRICTATIME,
        () if flags.contains(MsFlags::MS_NOATIME) => libc::MOUNT_ATTR_NOATIME,
        () => libc::MOUNT_ATTR_RELATIME,
    };
    let set = pairs.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(access_time, |attributes, (_, attribute)| attributes | attribute)
}

#[cfg(test)]
mod tests;
