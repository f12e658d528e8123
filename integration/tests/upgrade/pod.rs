//! A pod of an old shim, when all goes well.

use integration::failure::Result;
use integration::upgrade::{Mishap, Player, ShimBinary, play};

use crate::tales::{NEW, OLD, a_downgrade_that_was_forgotten, new_container_in_an_old_pod};

#[test]
fn pod_of_an_old_shim_gets_a_container_with_gos_newer_shim_on_the_disk() -> Result {
    play("old pod, Go's shim", &[OLD, Player::Ours, NEW], Mishap::None, async |node, story| {
        new_container_in_an_old_pod(node, story, Player::Ours, ShimBinary::Go("2")).await
    })
}

#[test]
fn pod_of_an_old_shim_gets_a_container_with_our_shim_on_the_disk() -> Result {
    play("old pod, our shim", &[OLD, Player::Ours, NEW], Mishap::None, async |node, story| {
        new_container_in_an_old_pod(node, story, Player::Ours, ShimBinary::Ours).await
    })
}

#[test]
fn pod_of_an_old_shim_gets_a_container_from_our_build_of_containerd() -> Result {
    play("old pod, our build", &[OLD, Player::Build, NEW], Mishap::None, async |node, story| {
        new_container_in_an_old_pod(node, story, Player::Build, ShimBinary::Go("2")).await
    })
}

#[test]
fn bundle_that_promises_too_much_is_corrected_at_load() -> Result {
    play("forgotten downgrade", &[OLD, Player::Ours, NEW], Mishap::None, async |node, story| {
        a_downgrade_that_was_forgotten(node, story, Player::Ours).await
    })
}

#[test]
fn bundle_that_promises_too_much_is_corrected_at_load_by_our_build() -> Result {
    let players = [OLD, Player::Build, NEW];
    play("forgotten downgrade, our build", &players, Mishap::None, async |node, story| {
        a_downgrade_that_was_forgotten(node, story, Player::Build).await
    })
}
