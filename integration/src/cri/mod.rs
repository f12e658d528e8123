//! A node for pods: containerd with CRI, driven by crictl as a kubelet drives it.
//!
//! * [`tools`]: containerd with the task manager in it, crictl and critest, which are built where there is a Go.
//! * [`config`], `network`: what the node's containerd is configured with, and the network that it and its pods are in.
//! * [`node`]: the node. Its containerd can be exchanged for another build while pods run.
//! * [`critest`]: the tests that a runtime is accepted by.
//! * [`pod`]: pods and containers, as crictl is told of them.
//! * [`scenes`]: what is shown of a node and tested.
//! * [`standin`]: a shim that is the sandbox of its pod, which no real one at hand is.

pub mod config;
pub mod critest;
mod network;
pub mod node;
pub mod pod;
pub mod scenes;
pub mod standin;
pub mod tools;

pub use node::Node;
pub use tools::Build;
