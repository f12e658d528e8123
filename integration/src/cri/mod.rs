//! A node for pods: containerd with CRI, driven by crictl as a kubelet drives it.
//!
//! * [`tools`]: containerd with the task manager in it, crictl and critest, which are built where there is a Go.
//! * `config`, `network`: what the node's containerd is configured with, and the bridge its pods are on.
//! * [`node`]: the node. Its containerd can be exchanged for another build while pods run.
//! * [`pod`]: pods and containers, as crictl is told of them.
//! * [`scenes`]: what is shown of a node and tested.

mod config;
mod network;
pub mod node;
pub mod pod;
pub mod scenes;
pub mod tools;

pub use node::Node;
pub use tools::Build;
