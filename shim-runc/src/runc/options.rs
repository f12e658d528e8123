//! The options of a container's OCI runtime, from a request or from the bundle.
//!
//! At Create they are written to the bundle, in the same two files and forms as containerd's own
//! shim does (`options.json`, `runtime`), so that `delete`, in a new process and perhaps of another
//! implementation, uses the same runtime with the same state.

use std::{
    io,
    ops::Deref,
    path::{Path, PathBuf},
};

use runtime_proto::{
    errdefs::Code,
    options::{Options, RuntimeOptions, Sent},
    types::Any,
};
use serde::Deserialize;

use crate::{
    error::{Error, Result},
    files,
};

/// Where runc keeps its state unless told otherwise; containerd's own default.
pub const DEFAULT_ROOT: &str = "/run/containerd/runc";
/// The OCI runtime unless told otherwise, looked up in PATH.
pub const DEFAULT_BINARY: &str = "runc";

const OPTIONS_FILE: &str = "options.json";
const RUNTIME_FILE: &str = "runtime";
/// The largest options file that is read, in bytes; real ones have a few hundred.
const MAX_OPTIONS: u64 = 1 << 20;

/// Options with their defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuncOptions(Options);

impl Deref for RuncOptions {
    type Target = Options;

    fn deref(&self) -> &Options {
        &self.0
    }
}

impl RuncOptions {
    /// Options as a client sent them.
    ///
    /// # Errors
    /// InvalidArgument for a type this shim does not know, or a body that does not parse.
    pub fn sent(any: Option<&Any>) -> Result<Self> {
        let invalid = |error: &dyn std::fmt::Display| {
            Error::new(Code::InvalidArgument, format!("runtime options: {error}"))
        };
        match Sent::decode(any).map_err(|error| invalid(&error))? {
            Sent::Default => Ok(Self::default()),
            Sent::Runc(options) => Ok(Self(options)),
            Sent::Generic(generic) => from_generic(&generic).map_err(|error| invalid(&error)),
        }
    }

    /// Options as an earlier process left them in a bundle; defaults where it left none.
    ///
    /// # Errors
    /// When a file is there and cannot be read or understood.
    pub fn load(bundle: &Path) -> Result<Self> {
        let path = bundle.join(OPTIONS_FILE);
        let json = match files::read(&path, MAX_OPTIONS) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => b"{}".to_vec(),
            Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
        };
        let runtime = files::read(&bundle.join(RUNTIME_FILE), MAX_OPTIONS).unwrap_or_default();
        Self::parse(&json, &runtime).map_err(|error| {
            Error::caused(Code::InvalidArgument, format!("read {}", path.display()), error)
        })
    }

    /// Options from the content of the two files.
    pub(crate) fn parse(json: &[u8], runtime: &[u8]) -> serde_json::Result<Self> {
        let mut options: Options = serde_json::from_slice(json)?;
        if options.binary_name.is_empty() {
            String::from_utf8_lossy(runtime).trim().clone_into(&mut options.binary_name);
        }
        Ok(Self(options))
    }

    /// Leaves the options in a bundle.
    ///
    /// # Errors
    /// When a file cannot be written, named in the error.
    pub fn store(&self, bundle: &Path) -> Result<()> {
        let json = serde_json::to_vec(&self.0)
            .map_err(|error| Error::caused(Code::Internal, "encode runtime options", error))?;
        for (name, content) in
            [(OPTIONS_FILE, json.as_slice()), (RUNTIME_FILE, self.0.binary_name.as_bytes())]
        {
            let path = bundle.join(name);
            // Written in place: a reader that meets a half-written file meets a shim that has just begun its Create, and
            // nothing to delete with it.
            files::write(&path, content, 0o600)
                .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
        }
        Ok(())
    }

    /// The binary to call.
    pub fn binary(&self) -> &str {
        if self.0.binary_name.is_empty() { DEFAULT_BINARY } else { &self.0.binary_name }
    }

    /// The directory of the runtime's state for this namespace.
    pub fn root(&self, namespace: &str) -> PathBuf {
        let root = if self.0.root.is_empty() { DEFAULT_ROOT } else { &self.0.root };
        Path::new(root).join(namespace)
    }
}

/// The keys of CRI's configuration table; those of other runtimes may stand beside them.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Table {
    no_pivot_root: bool,
    no_new_keyring: bool,
    shim_cgroup: String,
    io_uid: u32,
    io_gid: u32,
    binary_name: String,
    root: String,
    criu_path: String,
    systemd_cgroup: bool,
    criu_image_path: String,
    criu_work_path: String,
}

fn from_generic(generic: &RuntimeOptions) -> std::result::Result<RuncOptions, String> {
    let body = if generic.config_body.is_empty() && !generic.config_path.is_empty() {
        files::read(Path::new(&generic.config_path), MAX_OPTIONS)
            .map_err(|error| format!("{}: {error}", generic.config_path))?
    } else {
        generic.config_body.clone()
    };
    let text = String::from_utf8(body).map_err(|_| "the body is not text".to_owned())?;
    let table: Table = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    Ok(RuncOptions(Options {
        no_pivot_root: table.no_pivot_root,
        no_new_keyring: table.no_new_keyring,
        shim_cgroup: table.shim_cgroup,
        io_uid: table.io_uid,
        io_gid: table.io_gid,
        binary_name: table.binary_name,
        root: table.root,
        criu_path: table.criu_path,
        systemd_cgroup: table.systemd_cgroup,
        criu_image_path: table.criu_image_path,
        criu_work_path: table.criu_work_path,
        ..Options::default()
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use runtime_proto::any;

    use super::*;

    #[test]
    fn what_is_stored_is_loaded_in_a_new_process() {
        let bundle = tempfile::tempdir().unwrap();
        assert_eq!(RuncOptions::load(bundle.path()).unwrap(), RuncOptions::default());
        let options = RuncOptions(Options {
            binary_name: "crun".into(),
            root: "/run/r".into(),
            systemd_cgroup: true,
            ..Options::default()
        });
        options.store(bundle.path()).unwrap();
        assert_eq!(RuncOptions::load(bundle.path()).unwrap(), options);
        assert_eq!(options.root("ns"), Path::new("/run/r/ns"));
        // Only the runtime file is left, as by a shim of another make.
        fs::remove_file(bundle.path().join(OPTIONS_FILE)).unwrap();
        assert_eq!(RuncOptions::load(bundle.path()).unwrap().binary(), "crun");
    }

    #[test]
    fn the_table_of_cri_is_understood() {
        let mut value = b"\x0a\x01t\x1a".to_vec();
        let body = b"SystemdCgroup = true\nBinaryName = \"/usr/bin/crun\"\nOther = 1\n";
        value.push(u8::try_from(body.len()).unwrap());
        value.extend_from_slice(body);
        let any = any::raw(RuntimeOptions::NAME, value);
        let options = RuncOptions::sent(Some(&any)).unwrap();
        assert!(options.systemd_cgroup);
        assert_eq!(options.binary(), "/usr/bin/crun");

        let broken = any::raw(RuntimeOptions::NAME, b"\x1a\x03a=[".to_vec());
        assert_eq!(RuncOptions::sent(Some(&broken)).unwrap_err().kind(), Code::InvalidArgument);
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bundle = tempfile::tempdir().unwrap();
            fs::write(bundle.path().join(OPTIONS_FILE), &bytes).unwrap();
            let _ = RuncOptions::load(bundle.path());
        }
    }
}
