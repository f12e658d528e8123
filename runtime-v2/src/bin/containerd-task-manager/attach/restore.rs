//! What CRI's checkpoint of a whole container has beside criu's images: the difference that the
//! container had made to its image, as a layer of one.
//!
//! Extended attributes are left out, as the kernel may refuse them to this file system.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use flate2::bufread::MultiGzDecoder;
use runtime_v2::{Code, Error, Restoration, Result};
use tar::Archive;

/// Beside the directory of criu's images (checkpointctl's `RootFsDiffTar`).
const NAME: &str = "rootfs-diff.tar";

/// The first bytes of what gzip has packed; CRI's layers are.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// In front of a name: the file of the image is deleted (OCI image-spec, layer.md).
const WHITEOUT: &str = ".wh.";

/// In a directory: nothing of the image is left in it.
const OPAQUE: &str = ".wh..wh..opq";

/// The difference, if there is one.
#[derive(Debug)]
pub(super) struct RootfsDiff {
    layer: PathBuf,
}

impl RootfsDiff {
    /// The one beside a directory of criu's images.
    pub(super) fn beside(images: &str) -> Self {
        let dir = Path::new(images).parent().unwrap_or(Path::new("/"));
        Self { layer: dir.join(NAME) }
    }
}

#[async_trait]
impl Restoration for RootfsDiff {
    async fn complete(&self, rootfs: &Path) -> Result<()> {
        let (layer, into) = (self.layer.clone(), rootfs.to_path_buf());
        let applied = tokio::task::spawn_blocking(move || apply(&layer, &into)).await;
        let context = || format!("restore {} from {}", rootfs.display(), self.layer.display());
        match applied {
            Ok(applied) => applied.map_err(|error| Error::io(context(), error)),
            Err(error) => Err(Error::caused(Code::Internal, context(), error)),
        }
    }
}

/// Makes the changes of a layer, if it is there.
fn apply(layer: &Path, into: &Path) -> io::Result<()> {
    let file = match File::open(layer) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut packed = BufReader::new(file);
    let plain: Box<dyn Read> = if packed.fill_buf()?.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(packed))
    } else {
        Box::new(packed)
    };
    let mut archive = Archive::new(plain);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(nix::unistd::geteuid().is_root());
    let root = into.canonicalize()?;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        match whiteout(&path) {
            Some(hidden) => remove(&root, &path, hidden)?,
            None => put(&mut entry, &path, &root)?,
        }
    }
    Ok(())
}

/// What a whiteout hides: a name, or with none all that is in its directory.
fn whiteout(path: &Path) -> Option<Option<&str>> {
    let name = path.file_name()?.to_str()?;
    if name == OPAQUE { Some(None) } else { name.strip_prefix(WHITEOUT).map(Some) }
}

/// Puts a file of the layer in the place of whatever is there. The crate puts nothing outside of
/// `root`, whatever names and links are on the way.
fn put<R: Read>(entry: &mut tar::Entry<'_, R>, path: &Path, root: &Path) -> io::Result<()> {
    let is_dir = entry.header().entry_type().is_dir();
    if let Some(place) = within(root, path)?
        && !(is_dir && fs::symlink_metadata(&place).is_ok_and(|meta| meta.is_dir()))
    {
        clear(&place)?;
    }
    if entry.unpack_in(root)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} leads outside", path.display())))
}

fn remove(root: &Path, whiteout: &Path, hidden: Option<&str>) -> io::Result<()> {
    let Some(place) = within(root, whiteout)? else { return Ok(()) };
    match hidden {
        Some("" | "." | "..") => Err(io::ErrorKind::InvalidData.into()),
        Some(name) => clear(&place.with_file_name(name)),
        // It comes before what the layer itself has there.
        None => {
            let dir = place.parent().unwrap_or(root);
            fs::read_dir(dir)?.try_for_each(|entry| clear(&entry?.path()))
        }
    }
}

/// Where a path of the layer is, its last part not followed; none if its directory is not there.
fn within(root: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else { return Ok(None) };
    let parent = match root.join(parent).canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        parent => parent?,
    };
    if parent.starts_with(root) {
        return Ok(Some(parent.join(name)));
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} leads outside", path.display())))
}

/// Removes what is there, links not followed.
fn clear(place: &Path) -> io::Result<()> {
    match fs::symlink_metadata(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(place),
        Ok(_) => fs::remove_file(place),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn layer(dir: &Path, gzip: bool, files: &[(&str, &str)]) -> PathBuf {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o750);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            // Not by the crate's checked way, which refuses the odd ones.
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, text.as_bytes()).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let path = dir.join(NAME);
        if gzip {
            let mut packer = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
            io::copy(&mut tar.as_slice(), &mut packer).unwrap();
            packer.finish().unwrap();
        } else {
            fs::write(&path, tar).unwrap();
        }
        path
    }

    #[test]
    fn a_layer_adds_replaces_and_removes() {
        for gzip in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("rootfs");
            fs::create_dir_all(root.join("etc/old")).unwrap();
            fs::create_dir_all(root.join("opaque")).unwrap();
            fs::write(root.join("opaque/below"), "").unwrap();
            fs::write(root.join("etc/gone"), "").unwrap();
            symlink("/etc/passwd", root.join("etc/link")).unwrap();
            let files = [
                ("etc/new", "new"),
                ("etc/link", "a file now"),
                ("etc/.wh.gone", ""),
                ("etc/.wh.old", ""),
                ("etc/.wh.never", ""),
                ("opaque/.wh..wh..opq", ""),
                ("opaque/above", "above"),
            ];
            apply(&layer(dir.path(), gzip, &files), &root).unwrap();
            assert_eq!(fs::read_to_string(root.join("etc/new")).unwrap(), "new");
            assert_eq!(fs::read_to_string(root.join("etc/link")).unwrap(), "a file now");
            assert!(!root.join("etc/gone").exists() && !root.join("etc/old").exists());
            assert!(!root.join("opaque/below").exists() && root.join("opaque/above").exists());
        }
    }

    #[test]
    fn nothing_outside_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("rootfs");
        fs::create_dir(&root).unwrap();
        fs::write(dir.path().join("precious"), "precious").unwrap();
        symlink(dir.path(), root.join("out")).unwrap();
        for name in ["../precious", "out/precious", "../.wh.precious", "out/.wh.precious", ".wh.."]
        {
            let applied = apply(&layer(dir.path(), false, &[(name, "bad")]), &root);
            assert!(applied.is_err(), "{name}");
            assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "precious");
        }
        apply(&dir.path().join("no such layer"), &root).unwrap();
    }
}
