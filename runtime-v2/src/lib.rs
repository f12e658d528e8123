//! The task manager.
