//! Numbers, and what is said of them: the median, how far they spread, and how they compare within the same turn.

use serde::{Deserialize, Serialize};

/// The middle of some numbers; 0 of none.
#[must_use]
pub fn median(numbers: &[f64]) -> f64 {
    quantile(numbers, 0.5)
}

/// The number below which this share of all numbers is, between neighbours in proportion.
#[must_use]
pub fn quantile(numbers: &[f64], share: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = share * last as f64;
    let below = sorted.get(floor(place, last));
    let above = sorted.get((floor(place, last) + 1).min(last));
    let part = place.fract();
    below.unwrap_or(&0.0) * (1.0 - part) + above.unwrap_or(&0.0) * part
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= place <= last")]
fn floor(place: f64, last: usize) -> usize {
    (place.floor() as usize).min(last)
}

/// What one contender had in one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// The contender.
    pub who: String,
    /// The middle of all samples.
    pub median: f64,
    /// The first quartile.
    pub low: f64,
    /// The third quartile.
    pub high: f64,
    /// The distance between the quartiles, as a share of the median's size.
    pub spread: f64,
    /// The shim under test over this contender, turn by turn, and of these the median; none where that says nothing.
    pub ratio: Option<f64>,
    /// Every sample, in the order of turns.
    pub samples: Vec<f64>,
}

/// One thing that was measured of several contenders.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Case {
    /// A short name that stays the same, for programs.
    pub id: String,
    /// What was measured, for people.
    pub title: String,
    /// The unit of all numbers.
    pub unit: String,
    /// Is more better?
    pub more_is_better: bool,
    /// One for each contender; the shim under test is the first after the floor.
    pub figures: Vec<Figure>,
}

impl Case {
    /// A case of samples, by contender, in the order of turns; `ours` is the one that the others are compared with.
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        title: impl Into<String>,
        unit: &str,
        ours: &str,
        samples: Vec<(String, Vec<f64>)>,
    ) -> Self {
        let own = samples.iter().find(|(who, _)| who == ours).map(|(_, numbers)| numbers.clone());
        let own = own.unwrap_or_default();
        let figures = samples.into_iter().map(|(who, samples)| {
            let pairs: Vec<f64> = own
                .iter()
                .zip(&samples)
                .filter(|(_, theirs)| **theirs > 0.0)
                .map(|(ours, theirs)| ours / theirs)
                .collect();
            let (low, high) = (quantile(&samples, 0.25), quantile(&samples, 0.75));
            let middle = median(&samples);
            let spread = if middle == 0.0 { 0.0 } else { (high - low) / middle.abs() };
            let ratio = (who != ours && !pairs.is_empty()).then(|| median(&pairs));
            Figure { who, median: middle, low, high, spread, ratio, samples }
        });
        Self {
            id: id.into(),
            title: title.into(),
            unit: unit.to_owned(),
            more_is_better: false,
            figures: figures.collect(),
        }
    }

    /// The same, where more is better.
    #[must_use]
    pub fn more_is_better(mut self) -> Self {
        self.more_is_better = true;
        self
    }

    /// What a contender had.
    #[must_use]
    pub fn of(&self, who: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.who == who)
    }

    /// How much more than the floor each of the others had, turn by turn.
    #[must_use]
    pub fn above(&self, floor: &str, id: &str, title: &str, ours: &str) -> Option<Self> {
        let base = self.of(floor)?.samples.clone();
        let above = |figure: &Figure| {
            let numbers = figure.samples.iter().zip(&base).map(|(number, base)| number - base);
            (figure.who.clone(), numbers.collect())
        };
        let others = self.figures.iter().filter(|figure| figure.who != floor);
        let mut case = Self::new(id, title, &self.unit, ours, others.map(above).collect());
        // The share of a difference that may be nothing, or less, says nothing.
        case.figures.iter_mut().for_each(|figure| figure.ratio = None);
        Some(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles_and_quartiles() {
        let numbers = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median(&numbers), 3.0);
        assert_eq!(quantile(&numbers, 0.25), 2.0);
        assert_eq!(quantile(&numbers, 1.0), 5.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn contenders_are_compared_turn_by_turn() {
        // The machine was slow in the second turn, for both: the ratio does not show it.
        let samples =
            vec![("a".to_owned(), vec![1.0, 10.0, 1.0]), ("b".to_owned(), vec![2.0, 20.0, 2.0])];
        let case = Case::new("x", "x", "ms", "a", samples);
        assert_eq!(case.of("b").and_then(|figure| figure.ratio), Some(0.5));
        assert_eq!(case.of("a").and_then(|figure| figure.ratio), None);
        let above = case.above("a", "y", "y", "b").expect("a is there");
        assert_eq!(above.of("b").map(|figure| figure.median), Some(1.0));
    }
}
