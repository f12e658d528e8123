//! Whole streams, with real fifos, pipes, terminals and loggers.

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
