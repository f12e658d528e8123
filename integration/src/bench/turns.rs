//! In turns: every contender does one piece of work, then every contender does it again.

use std::collections::BTreeMap;

use super::ground::Bench;
use crate::failure::{Context, Result};

/// Samples by contender and by metric.
#[derive(Debug, Default)]
pub(super) struct Samples {
    numbers: BTreeMap<(usize, usize), Vec<f64>>,
}

impl Samples {
    /// One metric, by contender.
    pub(super) fn take(&mut self, names: &[String], metric: usize) -> Vec<(String, Vec<f64>)> {
        let mut numbers = |who: usize| self.numbers.remove(&(who, metric)).unwrap_or_default();
        names.iter().cloned().enumerate().map(|(who, name)| (name, numbers(who))).collect()
    }
}

/// Lets `work` be done by each of `names` in turn, as often as `turns` says and once before, which does not count. Who
/// begins changes from turn to turn, so that nobody always follows the same other.
///
/// # Errors
/// The first failure, with who failed.
pub(super) async fn alternate<const METRICS: usize>(
    bench: &Bench,
    names: &[String],
    turns: usize,
    work: impl AsyncFn(usize, usize) -> Result<[f64; METRICS]>,
) -> Result<Samples> {
    let mut samples = Samples::default();
    for turn in 0..=turns {
        bench.progress.turn(turn, turns);
        for step in 0..names.len() {
            let who = (turn + step) % names.len();
            let name = names.get(who).map_or("", String::as_str);
            let numbers = work(who, turn).await.context(name)?;
            if turn > 0 {
                for (metric, number) in numbers.into_iter().enumerate() {
                    samples.numbers.entry((who, metric)).or_default().push(number);
                }
            }
        }
    }
    Ok(samples)
}
