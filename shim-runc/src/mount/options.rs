//! Mount options in the words of fstab(5), taken apart into what mount(2) wants.

use nix::mount::MsFlags;

/// Options that only containerd's own mount handling understands.
const FOREIGN: &str = "X-containerd.";

/// Flags that belong to a mount rather than to its filesystem: a bind mount takes them only when it
/// is mounted anew.
pub(super) const PER_MOUNT: MsFlags = MsFlags::MS_RDONLY
    .union(MsFlags::MS_NOSUID)
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC)
    .union(MsFlags::MS_NOATIME)
    .union(MsFlags::MS_NODIRATIME)
    .union(MsFlags::MS_RELATIME)
    .union(MsFlags::MS_STRICTATIME);

/// What the options of one mount mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// Everything but propagation.
    pub(crate) flags: MsFlags,
    /// Propagation types, each of which takes a call of its own.
    pub(crate) propagation: Vec<MsFlags>,
    /// What the filesystem itself is to understand.
    pub(crate) data: Vec<String>,
    /// Whether the source is a file to be made a block device.
    pub(crate) loop_device: bool,
    /// Id mappings in the words of the option; both or none take effect.
    pub(crate) id_maps: (Option<String>, Option<String>),
}

impl Options {
    pub(crate) fn parse<S: AsRef<str>>(options: &[S]) -> Self {
        let mut parsed = Self {
            flags: MsFlags::empty(),
            propagation: Vec::new(),
            data: Vec::new(),
            loop_device: false,
            id_maps: (None, None),
        };
        for option in options.iter().map(AsRef::as_ref) {
            if let Some((flag, set)) = flag(option) {
                parsed.flags.set(flag, set);
            } else if let Some(kind) = propagation(option) {
                parsed.propagation.push(kind);
            } else if let Some(map) = option.strip_prefix("uidmap=") {
                parsed.id_maps.0 = Some(map.to_owned());
            } else if let Some(map) = option.strip_prefix("gidmap=") {
                parsed.id_maps.1 = Some(map.to_owned());
            } else if option == "loop" {
                parsed.loop_device = true;
            } else if !matches!(option, "" | "defaults") && !option.starts_with(FOREIGN) {
                parsed.data.push(option.to_owned());
            }
        }
        parsed
    }

    /// Whether this changes a mount that is there instead of making one.
    pub(super) fn is_remount(&self) -> bool {
        self.flags.contains(MsFlags::MS_REMOUNT)
    }
}

/// A flag, and whether the word sets or clears it.
fn flag(option: &str) -> Option<(MsFlags, bool)> {
    Some(match option {
        "async" => (MsFlags::MS_SYNCHRONOUS, false),
        "atime" => (MsFlags::MS_NOATIME, false),
        "bind" => (MsFlags::MS_BIND, true),
        "dev" => (MsFlags::MS_NODEV, false),
        "diratime" => (MsFlags::MS_NODIRATIME, false),
        "dirsync" => (MsFlags::MS_DIRSYNC, true),
        "exec" => (MsFlags::MS_NOEXEC, false),
        "mand" => (MsFlags::MS_MANDLOCK, true),
        "noatime" => (MsFlags::MS_NOATIME, true),
        "nodev" => (MsFlags::MS_NODEV, true),
        "nodiratime" => (MsFlags::MS_NODIRATIME, true),
        "noexec" => (MsFlags::MS_NOEXEC, true),
        "nomand" => (MsFlags::MS_MANDLOCK, false),
        "norelatime" => (MsFlags::MS_RELATIME, false),
        "nostrictatime" => (MsFlags::MS_STRICTATIME, false),
        "nosuid" => (MsFlags::MS_NOSUID, true),
        "rbind" => (MsFlags::MS_BIND.union(MsFlags::MS_REC), true),
        "relatime" => (MsFlags::MS_RELATIME, true),
        "remount" => (MsFlags::MS_REMOUNT, true),
        "ro" => (MsFlags::MS_RDONLY, true),
        "rw" => (MsFlags::MS_RDONLY, false),
        "strictatime" => (MsFlags::MS_STRICTATIME, true),
        "suid" => (MsFlags::MS_NOSUID, false),
        "sync" => (MsFlags::MS_SYNCHRONOUS, true),
        _ => return None,
    })
}

fn propagation(option: &str) -> Option<MsFlags> {
    let (recursive, kind) = match option.strip_prefix('r') {
        Some(kind) => (MsFlags::MS_REC, kind),
        None => (MsFlags::empty(), option),
    };
    let kind = match kind {
        "shared" => MsFlags::MS_SHARED,
        "slave" => MsFlags::MS_SLAVE,
        "private" => MsFlags::MS_PRIVATE,
        "unbindable" => MsFlags::MS_UNBINDABLE,
        _ => return None,
    };
    Some(kind | recursive)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flags(options: &[&str]) -> MsFlags {
        Options::parse(options).flags
    }

    #[test]
    fn words_set_and_clear_flags_in_their_order() {
        assert_eq!(flags(&["ro", "nosuid"]), MsFlags::MS_RDONLY | MsFlags::MS_NOSUID);
        assert_eq!(flags(&["ro", "rw"]), MsFlags::empty());
        assert_eq!(flags(&["rw", "ro"]), MsFlags::MS_RDONLY);
        assert_eq!(flags(&["noexec", "exec", "defaults", "async"]), MsFlags::empty());
        assert_eq!(flags(&["rbind"]), MsFlags::MS_BIND | MsFlags::MS_REC);
    }

    #[test]
    fn propagation_is_kept_apart() {
        let options = Options::parse(&["bind", "rslave", "shared"]);
        assert_eq!(options.flags, MsFlags::MS_BIND);
        assert_eq!(options.propagation, [MsFlags::MS_SLAVE | MsFlags::MS_REC, MsFlags::MS_SHARED]);
        assert_eq!(Options::parse(&["runbindable"]).propagation.len(), 1);
    }

    #[test]
    fn what_is_not_known_is_for_the_filesystem() {
        let options = Options::parse(&["lowerdir=/a:/b", "ro", "index=off", "userxattr", "rro"]);
        assert_eq!(options.data, ["lowerdir=/a:/b", "index=off", "userxattr", "rro"]);
    }

    #[test]
    fn containerds_own_words_are_dropped() {
        let options = Options::parse(&["X-containerd.mkdir.path=/a:0755", "loop", "size=1k"]);
        assert_eq!(options.data, ["size=1k"]);
        assert!(options.loop_device);
    }

    #[test]
    fn id_maps_are_taken_out() {
        let options = Options::parse(&["uidmap=0:1000:10", "gidmap=0:2000:10", "bind"]);
        assert_eq!(options.id_maps.0.as_deref(), Some("0:1000:10"));
        assert_eq!(options.id_maps.1.as_deref(), Some("0:2000:10"));
        assert!(options.data.is_empty());
    }

    proptest! {
        #[test]
        fn any_words_are_survived(options in proptest::collection::vec(".{0,12}", 0..8)) {
            let parsed = Options::parse(&options);
            prop_assert!(parsed.data.len() <= options.len());
        }
    }
}
