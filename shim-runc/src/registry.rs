//! The containers of a shim, by id.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use runtime_proto::errdefs::Code;

use crate::{
    container::Container,
    error::{Error, Result},
};

/// Which containers there are. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Registry(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// `None` while a container is being made.
    containers: HashMap<String, Option<Arc<Container>>>,
    /// The shim is ending.
    closed: bool,
}

/// An id that is taken, for a container that is being made. Dropping it frees the id.
#[derive(Debug)]
pub struct Reservation {
    registry: Registry,
    id: String,
}

impl Registry {
    /// Takes an id.
    ///
    /// # Errors
    /// AlreadyExists when it is in use, Unavailable when the shim is ending.
    pub fn reserve(&self, id: &str) -> Result<Reservation> {
        let mut table = self.lock();
        if table.closed {
            return Err(Error::new(Code::Unavailable, format!("shim is ending: container {id}")));
        }
        if table.containers.contains_key(id) {
            return Err(Error::new(Code::AlreadyExists, format!("container {id}")));
        }
        table.containers.insert(id.to_owned(), None);
        Ok(Reservation { registry: self.clone(), id: id.to_owned() })
    }

    /// The container of an id.
    ///
    /// # Errors
    /// NotFound.
    pub fn get(&self, id: &str) -> Result<Arc<Container>> {
        let container = self.lock().containers.get(id).cloned().flatten();
        // The words are those of containerd's shim, which people grep for.
        container.ok_or_else(|| Error::new(Code::NotFound, "container not created"))
    }

    /// Forgets a container.
    pub fn remove(&self, id: &str) {
        let mut table = self.lock();
        table.containers.remove(id);
        table.containers.shrink_to_fit();
    }

    /// All containers.
    pub fn all(&self) -> Vec<Arc<Container>> {
        self.lock().containers.values().flatten().cloned().collect()
    }

    /// Takes no more containers, if there are none now. True if so.
    pub fn close_if_empty(&self) -> bool {
        let mut table = self.lock();
        if table.containers.is_empty() {
            table.closed = true;
        }
        table.closed
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is whole at every point where a holder could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// The container is made: the id is its own.
    pub fn fill(self, container: Arc<Container>) {
        let id = self.id.clone();
        self.registry.lock().containers.insert(id, Some(container));
        // What is dropped now frees nothing: the id is filled.
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.registry.lock();
        if matches!(table.containers.get(&self.id), Some(None)) {
            table.containers.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_once_and_freed_by_a_failure() {
        let registry = Registry::default();
        let reservation = registry.reserve("c").unwrap();
        assert_eq!(registry.reserve("c").unwrap_err().kind(), Code::AlreadyExists);
        assert_eq!(registry.get("c").unwrap_err().kind(), Code::NotFound);
        assert!(!registry.close_if_empty(), "a container is being made");
        drop(reservation);
        assert!(registry.close_if_empty());
        assert_eq!(registry.reserve("c").unwrap_err().kind(), Code::Unavailable);
    }
}
