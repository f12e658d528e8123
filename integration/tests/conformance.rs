//! The script of calls against the shim of containerd 2 and against ours. All of containerd's shims, and the page of what
//! differs, are `make conformance`.

use integration::conformance::{compare, peer, reasons, script};
use integration::failure::{Failure, Result};
use integration::scenario::skip;
use integration::{hybrid, paths};

#[test]
fn every_difference_to_containerd_2_has_a_reason() -> Result {
    if paths::is_go_shim() {
        return skip("containerd's shim is not compared with itself");
    }
    let mut peers = peer::peers()?;
    peers.retain(|peer| peer.series == "2");
    if peers.is_empty() {
        return skip("no shim of containerd 2 on this machine");
    }
    hybrid::free_unified_hierarchy()?;
    let runtimes = [("runc".to_owned(), paths::runc()?), ("crun".to_owned(), paths::crun()?)];
    let reasons = reasons::reasons()?;
    let comparison = compare(&script::cases()?, &peers, &runtimes, &reasons, |_| {})?;
    let wrong = reasons::unexplained(&reasons, &comparison);
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(wrong.join("\n"))) }
}
