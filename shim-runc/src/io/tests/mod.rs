//! Whole streams, with real fifos, pipes, terminals and loggers.

#![expect(
    clippy::disallowed_methods,
    reason = "the tests may have threads of tokio, and have no reaper"
)]

mod binary;
mod client;
mod fifo;
mod file;
mod leaks;
mod plan;
mod stdin;
mod terminal;
mod throughput;
mod uri;
