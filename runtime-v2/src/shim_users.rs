//! How many shims of this manager are at one address: entries, and those in the making.
//!
//! A process that serves many containers may be asked to end by each of them, but is made to end
//! only when nobody uses it any more.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::address;

/// Users by address, however it is spelled. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Users {
    /// A plain lock: held for counting only.
    counts: Arc<Mutex<HashMap<String, Count>>>,
}

/// How an address is used.
#[derive(Debug, Default)]
struct Count {
    /// As its users spell the address.
    spellings: BTreeSet<String>,
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
    identity: String,
    making: bool,
}

impl Users {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a use that is in the making, of a process that this manager has to end or not.
    pub(crate) fn begin(&self, address: &str, ours: bool) -> Use {
        let identity = address::identity(address);
        let mut counts = self.counts();
        let count = counts.entry(identity.clone()).or_default();
        count.spellings.insert(address.to_owned());
        (count.users, count.making) = (count.users + 1, count.making + 1);
        count.ours |= ours;
        drop(counts);
        Use { users: self.clone(), identity, making: true }
    }

    /// All addresses in use, in every spelling.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.counts().values().flat_map(|count| &count.spellings).cloned().collect()
    }

    /// Whether an address is in use, and the process there is this manager's to end.
    pub(crate) fn is_ours(&self, address: &str) -> bool {
        self.counts().get(&address::identity(address)).is_some_and(|count| count.ours)
    }

    /// Whether somebody is in the making who uses an address.
    pub(crate) fn is_awaited(&self, address: &str) -> bool {
        self.counts().get(&address::identity(address)).is_some_and(|count| count.making > 0)
    }

    /// Whether an address is in use.
    pub(crate) fn any(&self, address: &str) -> bool {
        self.counts().contains_key(&address::identity(address))
    }
}

impl Use {
    /// Says that it is in the making no more: the process knows what there is to know.
    pub(crate) fn settle(&mut self) {
        if std::mem::take(&mut self.making)
            && let Some(count) = self.users.counts().get_mut(&self.identity)
        {
            count.making -= 1;
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.settle();
        let mut counts = self.users.counts();
        if let Some(count) = counts.get_mut(&self.identity) {
            count.users -= 1;
            if count.users == 0 {
                counts.remove(&self.identity);
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

    #[test]
    fn users_of_one_socket_are_counted_together_however_they_spell_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("s").to_str().unwrap().to_owned();
        let (users, url) = (Users::default(), format!("unix://{path}"));
        let (first, second) = (users.begin(&url, true), users.begin(&path, false));
        assert_eq!(users.addresses().len(), 2);
        drop(first);
        assert!(users.any(&url) && users.is_ours(&path), "the other is left");
        drop(second);
        assert!(!users.any(&url) && users.addresses().is_empty());
    }
}
