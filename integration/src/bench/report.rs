//! The result as a whole: for programs it is written as JSON.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::budget::{self, Budget};
use super::figure::Case;
use super::ground::Bench;
use super::machine::Machine;
use super::picture;
use super::table::number;
use crate::failure::{Context, Result};

/// The file for programs.
const JSON: &str = "report.json";

/// Everything that was measured, and on what.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// How much was done.
    pub effort: String,
    /// Where.
    pub machine: Machine,
    /// The versions of all who took part.
    pub versions: Vec<Version>,
    /// What was measured.
    pub cases: Vec<Case>,
    /// What was promised.
    pub budgets: Vec<Budget>,
    /// What contenders left behind when they had ended, by case; it was removed.
    pub left_behind: Vec<String>,
}

/// One who took part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Version {
    /// The name.
    pub name: String,
    /// The version that it says it is.
    pub version: String,
    /// The binary.
    pub binary: PathBuf,
    /// The size of the binary, in bytes.
    pub size: u64,
}

impl Report {
    /// Puts it together.
    #[must_use]
    pub fn new(bench: &Bench, cases: Vec<Case>) -> Self {
        let version = |name: &str, version: &str, binary: &Path| Version {
            name: name.to_owned(),
            version: version.to_owned(),
            binary: binary.to_owned(),
            size: fs::metadata(binary).map_or(0, |file| file.len()),
        };
        let shims = bench.shims.iter().map(|shim| version(&shim.name, &shim.version, &shim.binary));
        let runtimes = bench.runtimes.iter().map(|it| version(it.name, &it.version, &it.binary));
        let left = bench.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Self {
            effort: bench.effort.name.to_owned(),
            machine: bench.machine.clone(),
            versions: shims.chain(runtimes).collect(),
            budgets: budget::check(bench, &cases),
            cases,
            left_behind: left.iter().map(|(case, item)| format!("{case}: {item}")).collect(),
        }
    }

    /// Reads one that was written.
    ///
    /// # Errors
    /// When there is none, or it is not one.
    pub fn read(dir: &Path) -> Result<Self> {
        let file = dir.join(JSON);
        let bytes = fs::read(&file).context(file.display())?;
        serde_json::from_slice(&bytes).context(file.display())
    }

    /// The budgets on whose verdict another report differs, each with what both measured.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let differs = |budget: &&Budget| {
            other.budgets.iter().any(|it| it.name == budget.name && it.met != budget.met)
        };
        let tell = |budget: &Budget| {
            let others = other.budgets.iter().find(|it| it.name == budget.name);
            let before = others.map_or(f64::NAN, |it| it.value);
            format!("{}: {} before, {} now", budget.name, number(before), number(budget.value))
        };
        self.budgets.iter().filter(differs).map(tell).collect()
    }

    /// Writes `report.json` and `report.svg` into a directory.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, dir: &Path) -> Result {
        fs::create_dir_all(dir).context(dir.display())?;
        fs::write(dir.join(JSON), serde_json::to_vec_pretty(self)?)?;
        Ok(fs::write(dir.join("report.svg"), picture::draw(self))?)
    }
}
