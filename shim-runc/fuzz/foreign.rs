//! Feeds libFuzzer's inputs to one reader of foreign bytes, named by the variable `READER`.
//! `fuzz/run` builds this and runs it for each of them.
#![no_main]

use std::sync::OnceLock;

use shim_runc::foreign::{READERS, Reader};

static READER: OnceLock<Reader> = OnceLock::new();

fn choose() -> Reader {
    let name = std::env::var("READER").unwrap_or_default();
    READERS.iter().find(|reader| reader.name == name).copied().unwrap_or_else(|| {
        let names: Vec<_> = READERS.iter().map(|reader| reader.name).collect();
        panic!("READER is {name:?}, which is none of: {}", names.join(" "))
    })
}

libfuzzer_sys::fuzz_target!(init: { READER.get_or_init(choose); }, |bytes: &[u8]| {
    (READER.get_or_init(choose).read)(bytes);
});
