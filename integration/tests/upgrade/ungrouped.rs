//! Shims that have a process for every container, whatever pod it is in.

use std::fs;

use integration::failure::Result;
use integration::shim::is_alive;
use integration::upgrade::{Container, Mishap, Node, Player, Story, play};
use integration::{ensure, paths};
use serde_json::json;

use crate::tales::{NEW, OLDEST, a_process_for_every_container, each_its_own, pod};

#[test]
fn v1_shims_of_1_6_are_each_shut_down_by_their_own_deletion() -> Result {
    play("v1 shims", &[OLDEST, Player::Ours], Mishap::None, async |node, story| {
        a_process_for_every_container(node, story, Player::Ours).await
    })
}

#[test]
fn v1_shims_of_1_6_are_each_shut_down_by_our_build() -> Result {
    play("v1 shims, our build", &[OLDEST, Player::Build], Mishap::None, async |node, story| {
        a_process_for_every_container(node, story, Player::Build).await
    })
}

/// A stand-in of its own kind: one process for every `start`, of one API version. One that is old answers with nothing but
/// an address, and that is an abstract socket, as with the shims of before CVE-2020-15257.
fn ungrouped_shim(node: &Node<'_>, api: i32, is_old: bool) -> Result<String> {
    let home = node.fixture().file(&format!("fake{api}"));
    fs::create_dir_all(&home)?;
    let answer = if is_old { "plain" } else { "json" };
    let script = json!({
        "serves": [api], "version": api, "answer": answer, "abstract_socket": is_old,
    });
    fs::write(home.join("fakeshim.json"), script.to_string())?;
    let binary = home.join("containerd-shim-ungrouped-v2");
    fs::copy(paths::stand_in("fakeshim")?, &binary)?;
    Ok(binary.display().to_string())
}

/// The calls of Shutdown that a stand-in was given, in order.
fn shutdowns(node: &Node<'_>, api: i32) -> Vec<String> {
    let log = node.fixture().file(&format!("fake{api}")).join("calls.log");
    let log = fs::read_to_string(log).unwrap_or_default();
    log.lines().filter(|line| line.contains("Shutdown")).map(str::to_owned).collect()
}

/// In a sandbox on containerd's records, in one that only an annotation names, and in none.
async fn one_process_each(
    node: &mut Node<'_>,
    story: &Story,
    ours: Player,
    api: i32,
    is_old: bool,
) -> Result {
    let runtime = ungrouped_shim(node, api, is_old)?;
    let with = |container: Container| Container { runtime: runtime.clone(), ..container };
    let recorded = pod(node, "rec").map(with);
    let noted =
        pod(node, "note").map(with).map(|container| Container { on_record: false, ..container });
    let lone = ["x", "y"].map(|name| with(node.container(name)));

    node.boot(NEW).await?;
    for container in recorded.iter().take(2).chain(noted.iter().take(2)).chain(lone.iter().take(1))
    {
        node.run(container).await?;
    }
    each_its_own(node)?;
    story.proven(format!(
        "{NEW} runs two pods and a lone container, one process of API {api} for each"
    ));

    node.switch(ours).await?;
    for container in recorded.iter().chain(&noted).chain(&lone) {
        if !node.ids().contains(&container.id) {
            node.run(container).await?;
        }
    }
    story.proven(format!("{ours} finds them and adds to each"));

    // Pause containers first, in the middle, last.
    let order =
        [&recorded[1], &recorded[0], &lone[1], &noted[0], &noted[2], &recorded[3], &lone[0]];
    let rest = [&recorded[2], &noted[3], &noted[1]];
    for container in order.into_iter().chain(rest) {
        let shim = node.shim(&container.id)?;
        node.remove(&container.id).await?;
        let shared = node.ids().iter().any(|id| node.shim(id).is_ok_and(|other| other == shim));
        if shared {
            ensure!(is_alive(shim), "the shim of {} leaves another alone", container.id);
        } else {
            node.gone(shim).await?;
        }
        node.check().await?;
    }
    ensure!(!shutdowns(node, api).is_empty(), "nobody was told to shut down");
    story.proven(
        "each process ends with the deletion of the last container that it has, and not before",
    );
    Ok(())
}

#[test]
fn stand_ins_of_api_2_end_one_by_one_in_and_out_of_sandboxes() -> Result {
    play("ungrouped, API 2", &[NEW, Player::Ours], Mishap::None, async |node, story| {
        one_process_each(node, story, Player::Ours, 2, false).await
    })
}

#[test]
fn stand_ins_of_api_3_end_one_by_one_in_and_out_of_sandboxes() -> Result {
    play("ungrouped, API 3", &[NEW, Player::Ours], Mishap::None, async |node, story| {
        one_process_each(node, story, Player::Ours, 3, false).await
    })
}

#[test]
fn stand_ins_at_abstract_sockets_end_one_by_one_in_and_out_of_sandboxes() -> Result {
    play("ungrouped, abstract sockets", &[NEW, Player::Ours], Mishap::None, async |node, story| {
        one_process_each(node, story, Player::Ours, 2, true).await
    })
}

#[test]
fn stand_ins_end_one_by_one_under_our_build() -> Result {
    for api in [2, 3] {
        let name = format!("ungrouped, API {api}, our build");
        play(&name, &[NEW, Player::Build], Mishap::None, async |node, story| {
            one_process_each(node, story, Player::Build, api, false).await
        })?;
    }
    Ok(())
}
