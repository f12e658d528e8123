//! The manager against a shim that does what each test wants of it; one file per theme.

mod create;
mod delete;
mod lifecycle;
mod load;
mod lost;
mod support;
mod versions;
