//! Why answers differ: read from the list of reasons, and held against the differences there are.

use std::collections::BTreeSet;

use super::compare::{Comparison, Difference};
use crate::failure::{Context, Failure, Result};

const REASONS: &str = include_str!("reasons.txt");

/// Why some steps differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// A sentence or two.
    pub why: String,
    /// The steps.
    pub steps: Vec<Explained>,
}

/// A step that differs, and with whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The case and the step.
    pub step: String,
    /// Only these series and runtimes; none of a kind: all of that kind.
    pub only: BTreeSet<String>,
}

/// All reasons, in the order in which readers want them.
///
/// # Errors
/// The line that cannot be read.
pub fn reasons() -> Result<Vec<Reason>> {
    read(REASONS)
}

fn read(text: &str) -> Result<Vec<Reason>> {
    let mut reasons: Vec<Reason> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("line {} of the reasons", number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some(step) = line.strip_prefix("  ") else {
            match reasons.last_mut().filter(|last| last.steps.is_empty()) {
                Some(last) => last.why = format!("{} {line}", last.why),
                None => reasons.push(Reason { why: line.to_owned(), steps: Vec::new() }),
            }
            continue;
        };
        let last = reasons.last_mut().ok_or_else(|| Failure::new("a step without reason"));
        last.context(place())?.steps.push(Explained::read(step));
    }
    Ok(reasons)
}

impl Explained {
    fn read(line: &str) -> Self {
        let (step, only) = line.split_once(" @").unwrap_or((line, ""));
        let only = only.split_whitespace().map(str::to_owned).collect();
        Self { step: step.trim().to_owned(), only }
    }

    /// Does it speak of this series and this runtime?
    fn covers(&self, series: &str, runtime: &str) -> bool {
        let is_runtime = |word: &&String| matches!(word.as_str(), "runc" | "crun");
        let (runtimes, series_named): (Vec<_>, Vec<_>) = self.only.iter().partition(is_runtime);
        let fits = |named: &[&String], one: &str| {
            named.is_empty() || named.iter().any(|word| word.as_str() == one)
        };
        fits(&runtimes, runtime) && fits(&series_named, series)
    }

    fn is_of(&self, case: &str) -> bool {
        self.step.split_once(": ").is_some_and(|(one, _)| one == case)
    }

    fn explains(&self, difference: &Difference) -> bool {
        self.step == difference.step && self.covers(difference.series, &difference.runtime)
    }
}

/// What is said of one case.
#[must_use]
pub fn of_case(reasons: &[Reason], case: &str) -> Vec<Reason> {
    let mut mine = reasons.to_vec();
    for reason in &mut mine {
        reason.steps.retain(|step| step.is_of(case));
    }
    mine
}

/// The reason of a difference.
#[must_use]
pub fn reason_of<'a>(reasons: &'a [Reason], difference: &Difference) -> Option<&'a Reason> {
    let explains = |reason: &&Reason| reason.steps.iter().any(|step| step.explains(difference));
    reasons.iter().find(explains)
}

/// Differences without a reason, and reasons without a difference, in words.
#[must_use]
pub fn unexplained(reasons: &[Reason], comparison: &Comparison) -> Vec<String> {
    let mut wrong = Vec::new();
    for difference in &comparison.differences {
        if reason_of(reasons, difference).is_none() {
            let Difference { step, series, runtime, theirs, ours } = difference;
            wrong.push(format!(
                "no reason: {step} @{series} {runtime}\n    theirs: {theirs}\n    ours:   {ours}"
            ));
        }
    }
    for explained in reasons.iter().flat_map(|reason| &reason.steps) {
        for (series, runtime) in comparison.compared.keys() {
            let differs = comparison.differences.iter().any(|difference| {
                explained.step == difference.step
                    && difference.series == *series
                    && difference.runtime == *runtime
            });
            if explained.covers(series, runtime) && !differs {
                wrong.push(format!("no difference: {} @{series} {runtime}", explained.step));
            }
        }
    }
    wrong.extend(comparison.torn.iter().map(|step| format!("by service: {step}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(series: &'static str, runtime: &str) -> Difference {
        let (theirs, ours) = (String::new(), String::new());
        Difference { step: "a: b c".to_owned(), series, runtime: runtime.to_owned(), theirs, ours }
    }

    fn comparison(differences: Vec<Difference>) -> Comparison {
        let key = |series, runtime: &str| ((series, runtime.to_owned()), 1);
        let compared = [key("1.6", "runc"), key("1.6", "crun"), key("2", "runc")].into();
        Comparison { compared, differences, torn: Vec::new() }
    }

    #[test]
    fn reasons_and_differences_must_meet() {
        let reasons = read("Because\nof this.\n  a: b c @1.6 runc\n").expect("well-formed");
        assert_eq!(reasons.first().map(|reason| reason.why.as_str()), Some("Because of this."));
        let met = comparison(vec![difference("1.6", "runc")]);
        assert!(unexplained(&reasons, &met).is_empty());
        let other = comparison(vec![difference("1.6", "crun")]);
        let wrong = unexplained(&reasons, &other);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong.iter().any(|line| line.starts_with("no reason: a: b c @1.6 crun")));
        assert!(wrong.iter().any(|line| line.starts_with("no difference: a: b c @1.6 runc")));
    }

    #[test]
    fn the_list_is_well_formed_and_names_steps_of_the_script() {
        let cases = crate::conformance::script::cases().expect("the script is well-formed");
        for explained in reasons().expect("well-formed").iter().flat_map(|reason| &reason.steps) {
            let (case, _) = explained.step.split_once(": ").expect("case and step");
            assert!(cases.iter().any(|one| one.name == case), "{}", explained.step);
        }
    }
}
