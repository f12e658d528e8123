//! Plays everything, and finds what differs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::peer::Peer;
use super::play::{Note, play};
use super::reasons::{self, Reason};
use super::script::Case;
use crate::failure::{Failure, Result};

/// How many cases are played at a time: most of their time is waiting for processes.
const AT_ONCE: usize = 4;

/// How often a case is played against a shim of containerd until it goes as explained: they have races, and each of the
/// ways in which one can end may come up. Ours is played once.
const TRIES: usize = 3;

/// One step that a shim of containerd and the one under test answer differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The case and the step.
    pub step: String,
    /// containerd's series.
    pub series: &'static str,
    /// The OCI runtime's name.
    pub runtime: String,
    /// What containerd's shim answered.
    pub theirs: String,
    /// What ours answered.
    pub ours: String,
}

/// Everything that came out of playing.
#[derive(Debug, Default)]
pub struct Comparison {
    /// How many steps were compared, by series and runtime.
    pub compared: BTreeMap<(&'static str, String), usize>,
    /// Those that differ.
    pub differences: Vec<Difference>,
    /// Answers of the shim under test that depend on the service's version, which none should.
    pub torn: Vec<String>,
}

/// One playing of one case.
struct Performance<'a> {
    case: &'a Case,
    shim: Peer,
    /// Of whom: a series' shim, or the one under test spoken to in that series' manner.
    series: &'static str,
    ours: bool,
    runtime: &'a (String, PathBuf),
}

/// Plays the cases against each of the shims and against ours, with each runtime.
///
/// # Errors
/// When a case cannot be played.
pub fn compare(
    cases: &[Case],
    peers: &[Peer],
    runtimes: &[(String, PathBuf)],
    reasons: &[Reason],
    progress: impl Fn(&str) + Sync,
) -> Result<Comparison> {
    let performances = plan(cases, peers, runtimes)?;
    let notes = perform(&performances, &progress)?;
    let mut comparison = Comparison::default();
    let mut pairs = Vec::new();
    let of = |series: &str, ours: bool, runtime: &str, case: &str| {
        let is = |p: &Performance<'_>| {
            p.series == series && p.ours == ours && p.runtime.0 == runtime && p.case.name == case
        };
        performances.iter().position(is).and_then(|at| notes.get(at))
    };
    for case in cases {
        for (runtime, path) in runtimes {
            for peer in peers {
                let theirs = of(peer.series, false, runtime, &case.name);
                let ours = of(manner(peer, peers), true, runtime, &case.name);
                if let (Some(theirs), Some(ours)) = (theirs, ours) {
                    pairs.push(Pair { case, peer, runtime, path, theirs, ours });
                }
            }
            let manners: Vec<_> = distinct(peers)
                .iter()
                .filter_map(|peer| of(peer.series, true, runtime, &case.name))
                .collect();
            if let [first, others @ ..] = manners.as_slice() {
                for other in others {
                    comparison.tear(case, first, other);
                }
            }
        }
    }
    let settled = at_once(pairs.len(), |number| match pairs.get(number) {
        Some(pair) => pair.settle(reasons, &progress),
        None => Err(Failure::new("no such pair")),
    });
    settled?.into_iter().for_each(|one| comparison.merge(one));
    Ok(comparison)
}

/// Ours is played once for each service that it serves, not for each series.
fn distinct(peers: &[Peer]) -> Vec<&Peer> {
    let mut distinct: Vec<&Peer> = Vec::new();
    for peer in peers.iter().rev() {
        if !distinct.iter().any(|one| one.service == peer.service) {
            distinct.push(peer);
        }
    }
    distinct
}

fn manner(peer: &Peer, peers: &[Peer]) -> &'static str {
    let same = distinct(peers).into_iter().find(|one| one.service == peer.service);
    same.map_or(peer.series, |one| one.series)
}

fn plan<'a>(
    cases: &'a [Case],
    peers: &[Peer],
    runtimes: &'a [(String, PathBuf)],
) -> Result<Vec<Performance<'a>>> {
    let mut performances = Vec::new();
    for case in cases {
        for runtime in runtimes {
            for peer in peers {
                let (shim, series) = (peer.clone(), peer.series);
                performances.push(Performance { case, shim, series, ours: false, runtime });
            }
            for peer in distinct(peers) {
                let (shim, series) = (peer.ours()?, peer.series);
                performances.push(Performance { case, shim, series, ours: true, runtime });
            }
        }
    }
    Ok(performances)
}

fn perform(
    performances: &[Performance<'_>],
    progress: impl Fn(&str) + Sync,
) -> Result<Vec<Vec<Note>>> {
    at_once(performances.len(), |number| {
        let Some(Performance { case, shim, runtime, .. }) = performances.get(number) else {
            return Err(Failure::new("no such performance"));
        };
        let notes = play(case, shim, &runtime.1)?;
        let (number, all) = (number + 1, performances.len());
        progress(&format!("{number} of {all}: {}, {}, {}", case.name, shim.version, runtime.0));
        Ok(notes)
    })
}

/// Does numbered jobs, some at a time; gives the results by number.
fn at_once<T: Send>(count: usize, job: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let worker = || -> Result {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            let result = job(number)?;
            done.lock().unwrap_or_else(PoisonError::into_inner).insert(number, result);
        }
    };
    let outcomes: Vec<Result> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result>| {
            worker.join().unwrap_or_else(|_| Err(Failure::new("a case panicked")))
        };
        workers.into_iter().map(join).collect()
    });
    outcomes.into_iter().collect::<Result<Vec<()>>>()?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
}

/// A case as it went with ours, to be compared with how it went with one of containerd's.
struct Pair<'a> {
    case: &'a Case,
    peer: &'a Peer,
    runtime: &'a str,
    path: &'a Path,
    theirs: &'a [Note],
    ours: &'a [Note],
}

impl Pair<'_> {
    /// The differences; while they are not as explained, theirs is played again.
    fn settle(&self, reasons: &[Reason], progress: impl Fn(&str)) -> Result<Comparison> {
        let Self { case, peer, runtime, path, .. } = self;
        let reasons = reasons::of_case(reasons, &case.name);
        let mut comparison = self.differences(self.theirs)?;
        for _ in 1..TRIES {
            if reasons::unexplained(&reasons, &comparison).is_empty() {
                break;
            }
            progress(&format!("once more: {}, {}, {runtime}", case.name, peer.version));
            comparison = self.differences(&play(case, peer, path)?)?;
        }
        Ok(comparison)
    }

    fn differences(&self, theirs: &[Note]) -> Result<Comparison> {
        let Self { case, peer, runtime, ours, .. } = self;
        if theirs.len() != ours.len() {
            return Err(Failure::new(format!("{}: not the same steps", case.name)));
        }
        let mut comparison = Comparison::default();
        comparison.compared.insert((peer.series, (*runtime).to_owned()), theirs.len());
        for (theirs, ours) in theirs.iter().zip(*ours).filter(|(theirs, ours)| theirs != ours) {
            comparison.differences.push(Difference {
                step: format!("{}: {}", case.name, theirs.step),
                series: peer.series,
                runtime: (*runtime).to_owned(),
                theirs: theirs.seen.clone(),
                ours: ours.seen.clone(),
            });
        }
        Ok(comparison)
    }
}

impl Comparison {
    fn merge(&mut self, other: Self) {
        for (key, steps) in other.compared {
            *self.compared.entry(key).or_default() += steps;
        }
        self.differences.extend(other.differences);
    }

    fn tear(&mut self, case: &Case, first: &[Note], other: &[Note]) {
        for (first, other) in first.iter().zip(other).filter(|(first, other)| first != other) {
            let step = format!("{}: {}", case.name, first.step);
            self.torn.push(format!("{step}: {:?} and {:?}", first.seen, other.seen));
        }
    }
}
