//! The same stories with something going wrong at every step.

use integration::failure::Result;
use integration::upgrade::{Mishap, Player, ShimBinary, play};

use crate::tales::{
    NEW, OLD, OLDEST, a_downgrade_that_was_forgotten, a_process_for_every_container,
    new_container_in_an_old_pod,
};

/// The three stories, one after the other, each on a node of its own.
fn all_with(name: &str, mishap: Mishap) -> Result {
    all_by(Player::Ours, name, mishap)
}

/// The same, where containerd is the build that has the manager in it.
fn build_with(name: &str, mishap: Mishap) -> Result {
    all_by(Player::Build, &format!("our build, {name}"), mishap)
}

fn all_by(ours: Player, name: &str, mishap: Mishap) -> Result {
    play(&format!("old pod, {name}"), &[OLD, ours, NEW], mishap, async |node, story| {
        new_container_in_an_old_pod(node, story, ours, ShimBinary::Go("2")).await
    })?;
    play(
        &format!("forgotten downgrade, {name}"),
        &[OLD, ours, NEW],
        mishap,
        async |node, story| a_downgrade_that_was_forgotten(node, story, ours).await,
    )?;
    play(&format!("v1 shims, {name}"), &[OLDEST, ours], mishap, async |node, story| {
        a_process_for_every_container(node, story, ours).await
    })
}

#[test]
fn another_shim_binary_lies_on_the_disk_after_every_step() -> Result {
    all_with("shims swapped", Mishap::SwappedShims)
}

#[test]
fn the_manager_is_killed_after_every_step() -> Result {
    all_with("manager killed", Mishap::KilledManager)
}

#[test]
fn the_manager_is_killed_within_every_creation_and_deletion() -> Result {
    all_with("killed at work", Mishap::KilledAtWork)
}

#[test]
fn all_of_containerd_is_killed_after_every_step() -> Result {
    all_with("containerd killed", Mishap::KilledContainerd)
}

#[test]
fn the_disk_is_full_at_every_step() -> Result {
    all_with("full disk", Mishap::FullDisk)
}

#[test]
fn the_disk_is_read_only_at_every_start() -> Result {
    all_with("read-only disk", Mishap::ReadOnlyDisk)
}

#[test]
fn another_shim_binary_lies_on_the_disk_after_every_step_of_our_build() -> Result {
    build_with("shims swapped", Mishap::SwappedShims)
}

#[test]
fn the_manager_of_our_build_is_killed_after_every_step() -> Result {
    build_with("manager killed", Mishap::KilledManager)
}

#[test]
fn the_manager_of_our_build_is_killed_within_every_creation_and_deletion() -> Result {
    build_with("killed at work", Mishap::KilledAtWork)
}

#[test]
fn our_build_is_killed_after_every_step() -> Result {
    build_with("containerd killed", Mishap::KilledContainerd)
}

#[test]
fn the_disk_is_full_at_every_step_of_our_build() -> Result {
    build_with("full disk", Mishap::FullDisk)
}
