//! What is on containerd's record of a container, and what the manager is asked to make of it.

use runtime_proto::manager::Mount;
use serde_json::Value;

use super::glue::Order;
use super::node::{Container, Node};
use crate::failure::{Context, Result};
use crate::image;

impl Node<'_> {
    /// Puts a container on containerd's record, with its snapshot.
    pub(super) async fn record(&self, container: &Container) -> Result {
        let mut words = vec!["containers", "create"];
        let flags = self.flags(container);
        words.extend(flags.iter().map(String::as_str));
        words.extend([image::NAME, &container.id]);
        words.extend(container.command.iter().map(String::as_str));
        self.containerd()?.must(&words).await.map(drop)
    }

    /// Has the manager create what is on record.
    pub(super) async fn order(&self, container: &Container) -> Result<u32> {
        let containerd = self.containerd()?;
        let id = &container.id;
        let spec = containerd.must(&["containers", "info", "--spec", id]).await?;
        let mounts = containerd.must(&["snapshots", "mounts", "/to", id]).await?;
        let sandbox = container.sandbox.as_ref().filter(|sandbox| *sandbox != id);
        let order = Order {
            id,
            runtime: &container.runtime,
            spec: serde_json::from_str::<Value>(&spec).context("reading the spec")?,
            rootfs: mounts.lines().filter_map(mount).collect(),
            sandbox: sandbox.filter(|_| container.on_record).map(String::as_str),
        };
        Ok(self.manager()?.create(order).await?)
    }

    /// How ctr is told to run a container. It does not stay to see the end.
    pub(super) fn run_line(&self, container: &Container) -> Vec<String> {
        let mut line = ["run", "--detach", "--null-io"].map(str::to_owned).to_vec();
        line.extend(self.flags(container));
        line.extend([image::NAME.to_owned(), container.id.clone()]);
        line.extend_from_slice(&container.command);
        line
    }

    fn flags(&self, container: &Container) -> Vec<String> {
        let mut flags = vec!["--runtime".to_owned(), container.runtime.clone()];
        let Some(sandbox) = &container.sandbox else { return flags };
        let is_pause = *sandbox == container.id;
        let kind = if is_pause { "sandbox" } else { "container" };
        for annotation in [
            format!("io.kubernetes.cri.sandbox-id={sandbox}"),
            format!("io.kubernetes.cri.container-type={kind}"),
        ] {
            flags.extend(["--annotation".to_owned(), annotation]);
        }
        // 1.6 knows sandboxes by their annotation alone.
        if container.on_record && !is_pause && self.player.keeps_sandboxes() {
            flags.extend(["--sandbox".to_owned(), sandbox.clone()]);
        }
        flags
    }
}

/// `mount -t overlay overlay /to -o lowerdir=...,upperdir=...`, as ctr prints it.
fn mount(line: &str) -> Option<Mount> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |flag: &str| words.iter().position(|word| *word == flag).map(|at| at + 1);
    let at = after("-t")?;
    let mut mount = Mount::new();
    mount.type_ = (*words.get(at)?).to_owned();
    mount.source = (*words.get(at + 1)?).to_owned();
    let options = after("-o").and_then(|at| words.get(at)).copied().unwrap_or_default();
    mount.options =
        options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect();
    Some(mount)
}

#[cfg(test)]
mod tests {
    use super::mount;

    #[test]
    fn mounts_are_read_as_ctr_prints_them() {
        let line = "mount -t overlay overlay /to -o index=off,lowerdir=/a:/b";
        let read = mount(line).expect("a mount");
        assert_eq!((read.type_.as_str(), read.source.as_str()), ("overlay", "overlay"));
        assert_eq!(read.options, ["index=off", "lowerdir=/a:/b"]);
        assert!(mount("").is_none());
    }
}
