//! The manager against a shim that does what each test wants of it; one file per theme.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "../apart/mod.rs"]
mod apart;
mod create;
mod delete;
mod killed;
mod laws;
mod lifecycle;
mod load;
mod load_lost;
mod lost;
mod mounts;
mod support;
mod told;
mod versions;
