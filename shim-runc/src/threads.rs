//! Work that blocks in the kernel: mounts, disks, the files of cgroups. It is done on a few threads, which end soon after
//! they have nothing to do: an idle shim is one thread.
//!
//! tokio has such threads too, and ends the process when the kernel refuses it one. That happens on a node or in a cgroup
//! whose pids are used up, and is no reason for the containers of a shim to lose it.

use std::{
    collections::VecDeque,
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use runtime_proto::errdefs::Code;
use tokio::{runtime::Handle, sync::oneshot, time::sleep};

use crate::error::{Error, Result};

/// How many there are at most. Mounts and unmounts, mostly one at a time.
const MOST: usize = 16;
/// How long one waits for more to do.
const KEEP_ALIVE: Duration = Duration::from_millis(200);
/// Their stacks, in bytes. What runs there has no deep calls; pages not touched cost nothing.
const STACK: usize = 256 << 10;
/// Between attempts to get a thread for what has to be done some time.
const PAUSE: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce() + Send>;

static POOL: Pool = Pool {
    state: Mutex::new(State { jobs: VecDeque::new(), threads: 0, waiting: 0 }),
    more: Condvar::new(),
};

struct Pool {
    state: Mutex<State>,
    /// Wakes a thread when there is a job more.
    more: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that have nothing to do, or do not know yet that they have.
    waiting: usize,
}

/// Does `work` on a thread, and gives its result. Once begun it is done to its end, also when nobody waits for it any more.
///
/// # Errors
/// ResourceExhausted when there is no thread and the kernel gives none; then nothing was done.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let refused =
        |error: io::Error| Error::io("start a thread", error).with_kind(Code::ResourceExhausted);
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    let job = move || {
        // What is made there may want to be watched by the runtime.
        let _within = runtime.enter();
        // Whoever waited for it may be gone.
        let _ = sender.send(work());
    };
    POOL.take(Box::new(job)).map_err(refused)?;
    receiver.await.map_err(|error| Error::caused(Code::Internal, "blocking work", error))
}

/// Does what `work` makes, as [`run`] does it, as soon as there is a thread for it.
///
/// # Errors
/// Only when the work panics.
pub async fn run_some_time<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    work: impl Fn() -> W,
) -> Result<T> {
    loop {
        match run(work()).await {
            Err(error) if error.kind() == Code::ResourceExhausted => sleep(PAUSE).await,
            done => return done,
        }
    }
}

/// Does `work`, which is short and has to be done: as [`run`] does it, or else in the place of the caller.
pub async fn run_or_do_here<T: Send + 'static>(
    work: impl FnOnce() -> T + Clone + Send + 'static,
) -> T {
    match run(work.clone()).await {
        Ok(done) => done,
        Err(_) => work(),
    }
}

impl Pool {
    fn take(&'static self, job: Job) -> io::Result<()> {
        let mut state = self.lock();
        state.jobs.push_back(job);
        if state.jobs.len() <= state.waiting {
            self.more.notify_one();
            return Ok(());
        }
        if state.threads == MOST {
            return Ok(());
        }
        match thread::Builder::new().stack_size(STACK).spawn(|| self.work()) {
            Ok(_) => state.threads += 1,
            // Those that are busy now will come to it.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                let refused = state.jobs.pop_back();
                drop(state);
                // What it holds on to may take its time to let go of.
                drop(refused);
                return Err(error);
            }
        }
        Ok(())
    }

    fn work(&self) {
        let _gone = Gone(self);
        let mut state = self.lock();
        loop {
            while let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
            }
            state.waiting += 1;
            let wait = self.more.wait_timeout_while(state, KEEP_ALIVE, |it| it.jobs.is_empty());
            (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            if state.jobs.is_empty() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs under the lock, so that none can panic there.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread out, however it ends.
struct Gone<'a>(&'a Pool);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{task::JoinSet, time::timeout};

    use super::*;

    /// Detects hangs.
    const HANG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn all_work_is_done_by_a_few_threads() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut works = JoinSet::new();
        for number in 0..500 {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            works.spawn(run(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
                now.fetch_sub(1, Ordering::SeqCst);
                number
            }));
        }
        let done = timeout(HANG, works.join_all()).await.expect("some work is never done");
        let mut done: Vec<_> = done.into_iter().map(Result::unwrap).collect();
        done.sort_unstable();
        assert_eq!(done, (0..500).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= MOST);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_costs_no_thread() {
        for _ in 0..2 * MOST {
            let error = run(|| panic!("on purpose")).await.unwrap_err();
            assert_eq!(error.kind(), Code::Internal);
        }
        assert_eq!(timeout(HANG, run(|| 1)).await.expect("no thread is left").unwrap(), 1);
    }

    #[tokio::test]
    async fn what_is_given_up_is_done_all_the_same() {
        let (sender, receiver) = oneshot::channel();
        let given_up = run(move || {
            thread::sleep(Duration::from_millis(20));
            sender.send(()).unwrap();
        });
        assert!(timeout(Duration::from_millis(1), given_up).await.is_err());
        timeout(HANG, receiver).await.expect("it was not done").unwrap();
    }
}
