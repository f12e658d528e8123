//! ttrpc, as much of it as a shim needs.
//!
//! * [`message`]: reading and writing one message on a stream.
//! * [`server`]: accepts containerd, calls a [`server::Service`], answers.
//!   `budget`: how much of that at a time.
//! * [`client`]: one connection to containerd, one call at a time.
//!
//! The crate `ttrpc` has both, and serves well as a client elsewhere in this workspace. Its server
//! answers an unknown service with InvalidArgument where containerd looks for Unimplemented, ends
//! a call in the middle when the caller goes away, and lets anybody connect; see docs/adr.

mod budget;
pub mod client;
pub mod message;
pub mod server;

#[cfg(test)]
mod tests;
