//! A container image of one static busybox, as an OCI archive: made here, so that nothing is pulled.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::failure::{Context, Result};
use crate::fixture::Fixture;
use crate::paths;
use crate::rootfs;

/// What the image is called once it is imported.
pub const NAME: &str = "localhost/busybox:test";

/// The archive in a fixture's directory, made once.
///
/// # Errors
/// When busybox is missing or the file cannot be written.
pub fn archive(fixture: &Fixture) -> Result<String> {
    let archive = fixture.file("image.tar");
    if !archive.exists() {
        write(&archive)?;
    }
    Ok(archive.display().to_string())
}

/// An image in the making.
#[derive(Debug, Clone)]
pub struct Image {
    names: Vec<String>,
    command: Vec<String>,
    files: Vec<(String, u32, Vec<u8>)>,
}

impl Image {
    /// One static busybox, whose command is a shell.
    #[must_use]
    pub fn busybox() -> Self {
        Self { names: vec![NAME.to_owned()], command: vec!["sh".to_owned()], files: Vec::new() }
    }

    /// The same under other names.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.names = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// The same with another command.
    #[must_use]
    pub fn running(mut self, command: &[&str]) -> Self {
        self.command = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The same with one more file, in a layer of its own. Directories above it have to exist.
    #[must_use]
    pub fn with_file(mut self, path: &str, mode: u32, bytes: &[u8]) -> Self {
        self.files.push((path.trim_start_matches('/').to_owned(), mode, bytes.to_owned()));
        self
    }

    /// Writes it as an OCI archive.
    ///
    /// # Errors
    /// When busybox is missing or the file cannot be written.
    pub fn write(&self, archive: &Path) -> Result {
        let layers = self.layers(archive)?;
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Env": ["PATH=/bin"], "Cmd": self.command },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
            "history": layers.iter().map(|_| json!({ "created_by": "busybox" })).collect::<Vec<_>>(),
        });
        let config = config.to_string().into_bytes();
        let layer_type = "application/vnd.oci.image.layer.v1.tar";
        let listed: Vec<Value> = layers.iter().map(|layer| descriptor(layer_type, layer)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": listed,
        });
        let manifest = manifest.to_string().into_bytes();
        let named: Vec<Value> = self.names.iter().map(|name| named(name, &manifest)).collect();
        let index = json!({ "schemaVersion": 2, "manifests": named });

        let mut tar = Tar::default();
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        tar.file("index.json", 0o644, index.to_string().as_bytes());
        for blob in [&config, &manifest].into_iter().chain(&layers) {
            tar.file(&format!("blobs/{}", digest(blob).replace(':', "/")), 0o644, blob);
        }
        let mut file =
            fs::File::create(archive).context(format!("writing {}", archive.display()))?;
        Ok(file.write_all(&tar.end())?)
    }

    /// busybox, and what else there is.
    fn layers(&self, archive: &Path) -> Result<Vec<Vec<u8>>> {
        let tree = archive.with_extension("tree");
        rootfs::make(&tree)?;
        let mut busybox = Tar::default();
        busybox.tree(&tree, "")?;
        fs::remove_dir_all(&tree)?;
        let mut layers = vec![busybox.end()];
        if !self.files.is_empty() {
            let mut more = Tar::default();
            for (path, mode, bytes) in &self.files {
                more.file(path, *mode, bytes);
            }
            layers.push(more.end());
        }
        Ok(layers)
    }
}

/// Writes the archive of [`Image::busybox`].
///
/// # Errors
/// When busybox is missing or the file cannot be written.
pub fn write(archive: &Path) -> Result {
    Image::busybox().write(archive)
}

/// The index's entry for a manifest under one name.
fn named(name: &str, manifest: &[u8]) -> Value {
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    let mut named = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
    named["annotations"] = json!({
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": tag,
    });
    named["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    named
}

/// The machine's architecture by its OCI name.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

/// A tar archive in the making, in the ustar format, owned by root, without times: the same tree gives the same bytes.
#[derive(Debug, Default)]
struct Tar {
    bytes: Vec<u8>,
}

const BLOCK: usize = 512;

impl Tar {
    /// Adds everything below a directory.
    fn tree(&mut self, dir: &Path, prefix: &str) -> Result {
        let mut entries: Vec<_> = paths::entries(dir).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("{prefix}{name}");
            let meta = fs::symlink_metadata(&path)?;
            let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions());
            if meta.is_symlink() {
                let target = fs::read_link(&path)?.display().to_string();
                self.header(&name, 0o777, 0, b'2', &target);
            } else if meta.is_dir() {
                self.header(&format!("{name}/"), mode, 0, b'5', "");
                self.tree(&path, &format!("{name}/"))?;
            } else {
                self.file(&name, mode, &fs::read(&path)?);
            }
        }
        Ok(())
    }

    fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.header(name, mode, bytes.len(), b'0', "");
        self.bytes.extend(bytes);
        self.pad();
    }

    fn header(&mut self, name: &str, mode: u32, size: usize, kind: u8, link: &str) {
        let mut header = Vec::with_capacity(BLOCK);
        let mut field = |text: &str, width: usize| {
            let mut bytes: Vec<u8> = text.bytes().take(width).collect();
            bytes.resize(width, 0);
            header.extend(bytes);
        };
        field(name, 100);
        field(&format!("{:07o}", mode & 0o7777), 8);
        field("0000000", 8);
        field("0000000", 8);
        field(&format!("{size:011o}"), 12);
        field("00000000000", 12);
        // The checksum is that of the header with blanks in its place.
        field("        ", 8);
        field(&char::from(kind).to_string(), 1);
        field(link, 100);
        field("ustar\0", 6);
        field("00", 2);
        field("", 247);
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        let sum = format!("{sum:06o}\0 ");
        header.splice(148..156, sum.into_bytes());
        self.bytes.extend(header);
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(BLOCK);
        self.bytes.resize(length, 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.extend([0; 2 * BLOCK]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_read_by_tar() {
        let dir = tempfile::tempdir().expect("a directory");
        let archive = dir.path().join("image.tar");
        write(&archive).expect("an archive");
        let list = std::process::Command::new("tar").arg("-tvf").arg(&archive).output();
        let list = list.expect("tar runs");
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
        assert!(text.contains("index.json") && text.contains("blobs/sha256/"), "{text}");
    }
}
