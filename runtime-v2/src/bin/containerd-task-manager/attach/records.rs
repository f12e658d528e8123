//! containerd's records of containers and sandboxes, as it has told them: all of them at `Load`,
//! and of sandboxes those that a `Create` speaks of.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use runtime_proto::manager::{Container, Sandbox};
use runtime_v2::{ContainerStore, Key, Result, SandboxStore};

/// What containerd has told.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// A plain lock: held for a look or a change.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    runtimes: HashMap<Key, String>,
    sandboxes: HashSet<Key>,
    /// How many creations speak of a sandbox that is on record.
    vouched: HashMap<Key, usize>,
}

impl Records {
    /// These records. Names that nothing can have are nothing's.
    pub(super) fn new(containers: Vec<Container>, sandboxes: Vec<Sandbox>) -> Self {
        let runtimes = containers.into_iter().filter_map(|container| {
            Some((Key::new(container.namespace, container.id).ok()?, container.runtime))
        });
        let sandboxes = sandboxes
            .into_iter()
            .filter_map(|sandbox| Key::new(sandbox.namespace, sandbox.id).ok());
        let told = Told {
            runtimes: runtimes.collect(),
            sandboxes: sandboxes.collect(),
            vouched: HashMap::new(),
        };
        Self { told: Mutex::new(told) }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what only a load asks for.
    pub(super) fn loaded(&self) {
        let mut told = self.told();
        (told.runtimes, told.sandboxes) = (HashMap::new(), HashSet::new());
    }

    /// Notes a sandbox that is on record, for as long as the answer is kept.
    pub(super) fn vouch(self: &Arc<Self>, key: Key) -> Vouched {
        *self.told().vouched.entry(key.clone()).or_default() += 1;
        Vouched { records: Arc::clone(self), key }
    }
}

/// A sandbox that containerd has said is on record.
#[derive(Debug)]
pub(super) struct Vouched {
    records: Arc<Records>,
    key: Key,
}

impl Drop for Vouched {
    fn drop(&mut self) {
        let mut told = self.records.told();
        if let Some(count) = told.vouched.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                told.vouched.remove(&self.key);
            }
        }
    }
}

#[async_trait]
impl ContainerStore for Records {
    async fn runtime(&self, key: &Key) -> Result<Option<String>> {
        Ok(self.told().runtimes.get(key).cloned())
    }
}

#[async_trait]
impl SandboxStore for Records {
    async fn contains(&self, key: &Key) -> Result<bool> {
        let told = self.told();
        Ok(told.sandboxes.contains(key) || told.vouched.contains_key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sandbox_is_known_while_anybody_vouches_for_it() {
        let records = Arc::new(Records::default());
        let key = Key::new("ns", "pod").unwrap();
        assert!(!records.contains(&key).await.unwrap());
        let (one, two) = (records.vouch(key.clone()), records.vouch(key.clone()));
        drop(one);
        assert!(records.contains(&key).await.unwrap());
        drop(two);
        assert!(!records.contains(&key).await.unwrap());
        assert!(records.told().vouched.is_empty());
    }

    #[tokio::test]
    async fn names_that_nothing_can_have_are_left_out() {
        let mut bad = Container::new();
        (bad.namespace, bad.id) = ("ns".into(), "../x".into());
        let mut good = Container::new();
        (good.namespace, good.id, good.runtime) = ("ns".into(), "c".into(), "r".into());
        let records = Records::new(vec![bad, good], Vec::new());
        let key = Key::new("ns", "c").unwrap();
        assert_eq!(records.runtime(&key).await.unwrap().as_deref(), Some("r"));
        records.loaded();
        assert_eq!(records.runtime(&key).await.unwrap(), None);
    }
}
