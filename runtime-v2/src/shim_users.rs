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
    counts: Arc<Mutex<HashMap<String, Count>>>,
}

/// How an address is used.
#[derive(Debug, Default)]
struct Count {
    users: usize,
    /// How many of them are in the making: the process may know nothing of them yet.
    making: usize,
    /// Whether one of them, though it may have left, has started the process.
    ours: bool,
}

/// One use of an address; dropping it ends the use.
#[derive(Debug)]
pub(crate) struct Use {
    users: Users,
    address: String,
    making: bool,
}

impl Users {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a use that is in the making, of a process that this manager has to end or not.
    pub(crate) fn begin(&self, address: &str, ours: bool) -> Use {
        let mut counts = self.counts();
        let count = counts.entry(address.to_owned()).or_default();
        (count.users, count.making) = (count.users + 1, count.making + 1);
        count.ours |= ours;
        drop(counts);
        Use { users: self.clone(), address: address.to_owned(), making: true }
    }

    /// All addresses in use.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.counts().keys().cloned().collect()
    }

    /// Whether an address is in use, and the process there is this manager's to end.
    pub(crate) fn is_ours(&self, address: &str) -> bool {
        self.counts().get(address).is_some_and(|count| count.ours)
    }

    /// Whether somebody is in the making who uses an address.
    pub(crate) fn is_awaited(&self, address: &str) -> bool {
        self.counts().get(address).is_some_and(|count| count.making > 0)
    }

    /// Whether an address is in use.
    pub(crate) fn any(&self, address: &str) -> bool {
        self.counts().contains_key(address)
    }
}

impl Use {
    /// Says that it is in the making no more: the process knows what there is to know.
    pub(crate) fn settle(&mut self) {
        if std::mem::take(&mut self.making)
            && let Some(count) = self.users.counts().get_mut(&self.address)
        {
            count.making -= 1;
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.settle();
        let mut counts = self.users.counts();
        if let Some(count) = counts.get_mut(&self.address) {
            count.users -= 1;
            if count.users == 0 {
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
        let (first, mut second) = (users.begin("a", true), users.begin("a", false));
        second.settle();
        assert!(users.is_awaited("a"));
        drop(first);
        assert!(!users.is_awaited("a"));
        assert!(users.any("a") && !users.any("b"));
        assert!(users.is_ours("a"), "whoever started it");
        drop(second);
        assert!(!users.any("a"));
        let _other = users.begin("a", false);
        assert!(!users.is_ours("a"), "another process");
    }
}
