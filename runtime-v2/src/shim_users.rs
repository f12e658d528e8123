//! How many shims of this manager are at one address: entries, and those in the making.
//!
//! A process that serves many containers may be asked to end by each of them, but is made to end
//! only when nobody uses it any more.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Users by address. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Users {
    /// A plain lock: held for counting only.
    counts: Arc<Mutex<HashMap<String, usize>>>,
}

/// One use of an address; dropping it ends the use.
#[derive(Debug)]
pub(crate) struct Use {
    users: Users,
    address: String,
}

impl Users {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a use.
    pub(crate) fn begin(&self, address: &str) -> Use {
        *self.counts().entry(address.to_owned()).or_default() += 1;
        Use { users: self.clone(), address: address.to_owned() }
    }

    /// All addresses in use.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.counts().keys().cloned().collect()
    }

    /// Whether an address is in use.
    pub(crate) fn any(&self, address: &str) -> bool {
        self.counts().contains_key(address)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut counts = self.users.counts();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_use_until_its_last_user_leaves() {
        let users = Users::default();
        let (first, second) = (users.begin("a"), users.begin("a"));
        drop(first);
        assert!(users.any("a") && !users.any("b"));
        drop(second);
        assert!(!users.any("a"));
    }
}
