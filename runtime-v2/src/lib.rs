//! containerd's task manager as a library.
pub mod error;
pub mod id;
pub mod ttrpc;
pub use error::{Error, Result};
pub mod address;
pub mod bundle;
pub mod client;
pub mod config;
pub mod runtime_path;
pub mod shim_binary;
pub mod shim_log;
pub mod stray;
