//! The containers of a shim, by id.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use runtime_proto::errdefs::Code;
use tokio::sync::Notify;

use crate::{
    container::Container,
    error::{Error, Result},
};

/// Which containers there are. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Registry(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// `None` while a container is being made.
    containers: HashMap<String, Option<Arc<Container>>>,
    /// The shim is ending.
    closed: bool,
    /// The shim was told to end while nothing but containers in the making were there. If none of
    /// them comes to be, it does.
    unwanted: bool,
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
            return Err(Error::new(Code::Unavailable, "the shim is ending"));
        }
        if table.containers.contains_key(id) {
            return Err(Error::new(Code::AlreadyExists, "the id is in use"));
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

    /// Takes no more containers, if there are none now; if there are only such as are being made,
    /// then as soon as the last of them has failed.
    pub fn close_if_empty(&self) {
        let mut table = self.lock();
        table.unwanted = table.containers.values().all(Option::is_none);
        self.close_if_unwanted(&mut table);
    }

    /// Whether no more containers are taken.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits until no more containers are taken.
    pub async fn closed(&self) {
        self.0.closed.notified().await;
    }

    fn close_if_unwanted(&self, table: &mut Table) {
        if table.unwanted && table.containers.is_empty() {
            table.closed = true;
            self.0.closed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is whole at every point where a holder could panic.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// The container is made: the id is its own.
    pub fn fill(self, container: Arc<Container>) {
        let id = self.id.clone();
        let mut table = self.registry.lock();
        table.containers.insert(id, Some(container));
        table.unwanted = false;
        drop(table);
        // What is dropped now frees nothing: the id is filled.
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.registry.lock();
        if matches!(table.containers.get(&self.id), Some(None)) {
            table.containers.remove(&self.id);
            self.registry.close_if_unwanted(&mut table);
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
        drop(reservation);
        drop(registry.reserve("c").unwrap());
        assert!(!registry.is_closed(), "nobody wants it to end");
        registry.close_if_empty();
        assert!(registry.is_closed());
        assert_eq!(registry.reserve("c").unwrap_err().kind(), Code::Unavailable);
    }

    #[test]
    fn an_end_asked_for_during_a_create_comes_when_that_fails() {
        let registry = Registry::default();
        let (first, second) = (registry.reserve("a").unwrap(), registry.reserve("b").unwrap());
        registry.close_if_empty();
        drop(first);
        assert!(!registry.is_closed(), "another container is being made");
        drop(second);
        assert!(registry.is_closed());
    }
}
