//! `make demo-cri`: pods through the task manager, in a containerd that has it in the place of its own, for a person to
//! watch.

use std::process::ExitCode;
use std::time::Instant;

use integration::cri::scenes;
use integration::cri::{Build, Node, tools};
use integration::demo::show;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::page::Page;

fn main() -> ExitCode {
    show(all_scenes)
}

async fn all_scenes(page: &mut Page, fixture: &Fixture) -> Result<bool> {
    if let Some(lacking) = tools::lacking() {
        return Err(Failure::new(lacking));
    }
    page.title("containerd with the task manager in it, driven by crictl");
    let mut node = Node::start(fixture, Build::Ours).await?;
    let version = node.must(&["version"]).await?;
    let version = version.lines().find_map(|line| line.strip_prefix("RuntimeVersion:"));
    page.note(&format!("containerd {}", version.unwrap_or_default().trim()));
    scenes::life(&node, &mut teller(page)).await?;
    page.title("what is killed under it");
    scenes::killed_manager(&node, &mut teller(page)).await?;
    scenes::killed_shim(&node, &mut teller(page)).await?;
    scenes::killed_containerd(&mut node, &mut teller(page)).await?;
    page.title("from stock containerd to it and back, pods running");
    node.exchange(Build::Stock).await?;
    scenes::exchange(&mut node, &mut teller(page)).await?;
    node.stop().await?;
    Ok(true)
}

/// Writes what a scene tells, with the time since it told the last.
fn teller(page: &mut Page) -> impl FnMut(&str, &str) {
    let mut last = Instant::now();
    move |what, text| {
        page.good(what, text, Some(last.elapsed()));
        last = Instant::now();
    }
}
