//! `doctor`: finds what shims and managers have left behind, says what each thing is, and removes,
//! when asked to, what is proven dead.
//!
//! It works beside any manager, running or not, under our state directory and under containerd's
//! own. Three rules keep it from harm:
//!
//! * A thing is proven dead by looking at it: nobody listens, no process is there, nothing refers
//!   to it. What cannot be proven is told and left.
//! * What is younger than a minute may be in the making, and is not told.
//! * A proof is made again right before anything is removed, and the removal itself is one that
//!   fails on what is in use: an unlink of a socket that refuses, an unmount that is not lazy, a
//!   request to end that a shim with containers ignores.

mod bundles;
mod mounts;
mod runtime_state;
mod shims;
mod sockets;

use std::{
    error::Error,
    fmt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use runtime_v2::{Key, inspect::Inspected};
use serde::Serialize;

use crate::{
    config::{Given, Settings},
    containerd::{Containerd, Scope},
    output,
    places::{Places, surroundings},
};

/// Below this age a thing may be in the making: a create takes seconds on a node in need.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Rounds of fixing: a shim, its bundle, what refers to that, and one to see that all is gone.
const MAX_ROUNDS: usize = 4;

/// Options of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    places: Places,
    /// Socket of the containerd whose sandboxes may have shims without tasks
    /// [default: that of the settings]
    #[arg(long, value_name = "SOCKET")]
    containerd: Option<PathBuf>,
    /// Directory of shims' sockets; may be given several times
    #[arg(long, value_name = "DIR", default_value = "/run/containerd/s")]
    sockets: Vec<PathBuf>,
    /// Directory of OCI runtimes' state, with one directory per namespace
    #[arg(long, value_name = "DIR", default_value = "/run/containerd/runc")]
    runtime_root: Vec<PathBuf>,
    /// Remove what is proven dead
    #[arg(long)]
    fix: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Look at younger things too; only for a machine on which nothing is being created
    #[arg(long)]
    everything: bool,
}

/// What kind of remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A shim that has no task.
    LeakedShim,
    /// A shim that does not answer.
    SilentShim,
    /// A container whose shim or bundle is gone.
    Orphan,
    /// A bundle that no shim belongs to.
    DeadBundle,
    /// A mount that no bundle belongs to.
    StrayMount,
    /// State of an OCI runtime that no bundle belongs to.
    StaleState,
    /// A socket that nobody listens at.
    DeadSocket,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::LeakedShim => "leaked-shim",
            Kind::SilentShim => "silent-shim",
            Kind::Orphan => "orphan",
            Kind::DeadBundle => "dead-bundle",
            Kind::StrayMount => "stray-mount",
            Kind::StaleState => "stale-state",
            Kind::DeadSocket => "dead-socket",
        })
    }
}

/// One thing that should not be there.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    /// The process, or the path.
    subject: String,
    /// What it is, and why it is taken for that.
    explanation: String,
    /// Whether it is proven dead.
    fixable: bool,
    /// What `--fix` did about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip)]
    remedy: Option<Remedy>,
    #[serde(skip)]
    fixed: bool,
}

/// How a thing that is proven dead is removed.
#[derive(Debug)]
pub(crate) enum Remedy {
    Shim(shims::Dismissal),
    Bundle(bundles::Removal),
    Mount(PathBuf),
    State(runtime_state::Removal),
    Socket(sockets::Removal),
}

impl Finding {
    fn new(kind: Kind, subject: impl ToString, explanation: impl Into<String>) -> Self {
        Self {
            kind,
            container: None,
            subject: subject.to_string(),
            explanation: explanation.into(),
            fixable: false,
            outcome: None,
            remedy: None,
            fixed: false,
        }
    }

    fn of(mut self, key: &Key) -> Self {
        self.container = Some(key.to_string());
        self
    }

    fn curable(mut self, remedy: Remedy) -> Self {
        (self.fixable, self.remedy) = (true, Some(remedy));
        self
    }

    async fn fix(&mut self) {
        let done = match self.remedy.take() {
            None => return,
            Some(Remedy::Shim(dismissal)) => dismissal.apply().await,
            Some(Remedy::Bundle(removal)) => removal.apply().await,
            Some(Remedy::Mount(point)) => mounts::unmount(&point),
            Some(Remedy::State(removal)) => removal.apply().await,
            Some(Remedy::Socket(removal)) => removal.apply(),
        };
        self.fixed = done.is_ok();
        self.outcome = Some(match done {
            Ok(()) => "removed".to_owned(),
            Err(why) => format!("left: {why}"),
        });
    }

    fn lines(&self) -> String {
        let whose = self.container.as_deref().map(|id| format!("{id}: ")).unwrap_or_default();
        let mut line = format!("{}: {whose}{}: {}", self.kind, self.subject, self.explanation);
        if let Some(outcome) = &self.outcome {
            line = format!("{line} [{outcome}]");
        } else if self.fixable {
            line.push_str(" [--fix removes it]");
        }
        line
    }
}

/// What is known before anything is judged.
#[derive(Debug)]
struct Scene {
    /// Directories of bundles.
    states: Vec<PathBuf>,
    bundles: Vec<Inspected>,
    containerd: Containerd,
    min_age: Duration,
}

impl Scene {
    /// Whether a file or directory is old enough to be judged. One that is gone is not.
    fn is_old(&self, path: &Path) -> bool {
        is_older(path, self.min_age)
    }

    /// Whether there is a sandbox of this id; none if nobody can say.
    async fn is_sandbox(&self, key: &Key) -> Option<bool> {
        self.containerd.has_sandbox(&Scope::of(&key.namespace), key.id.as_str()).await.ok()
    }
}

fn is_older(path: &Path, age: Duration) -> bool {
    let changed = path.symlink_metadata().and_then(|meta| meta.modified());
    changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|is| is >= age))
}

/// Looks, and fixes if asked to. Tells whether nothing is left that should not be there.
///
/// # Errors
/// When a state directory cannot be read.
pub(crate) async fn run(options: Options) -> Result<bool, Box<dyn Error>> {
    let mut findings = find(&options).await?;
    if options.fix {
        findings = fix(&options, findings).await?;
    }
    if options.json {
        output::json(&findings)?;
    } else if findings.is_empty() {
        output::line("nothing is left behind")?;
    }
    if !options.json {
        findings.iter().try_for_each(|finding| output::line(&finding.lines()))?;
    }
    Ok(findings.iter().all(|finding| finding.fixed))
}

/// Fixes what can be, and looks again: what refers to a thing is seen to be dead only when that
/// thing has gone. Gives what was fixed, and what is left.
async fn fix(
    options: &Options,
    mut findings: Vec<Finding>,
) -> Result<Vec<Finding>, Box<dyn Error>> {
    let mut done = Vec::new();
    for _ in 0..MAX_ROUNDS {
        for finding in &mut findings {
            finding.fix().await;
        }
        let (fixed, left): (Vec<_>, Vec<_>) = findings.into_iter().partition(|it| it.fixed);
        if fixed.is_empty() {
            done.extend(left);
            return Ok(done);
        }
        done.extend(fixed);
        findings = find(options).await?;
    }
    done.extend(findings);
    Ok(done)
}

async fn find(options: &Options) -> Result<Vec<Finding>, Box<dyn Error>> {
    let states = options.places.directories()?;
    let socket = match &options.containerd {
        Some(socket) => socket.clone(),
        None => Settings::new(Given::default(), options.places.settings())?.containerd,
    };
    let mut bundles = Vec::new();
    for state in &states {
        bundles.extend(runtime_v2::inspect::inspect(&surroundings(state)).await?);
    }
    let min_age = if options.everything { Duration::ZERO } else { MIN_AGE };
    let containerd = Containerd::new(socket.as_path().into());
    let scene = Scene { states, bundles, containerd, min_age };
    let mut findings = Vec::new();
    for bundle in &scene.bundles {
        findings.extend(bundles::judge(&scene, bundle).await);
    }
    findings.extend(shims::without_bundle(&scene).await);
    findings.extend(mounts::without_bundle(&scene)?);
    for root in &options.runtime_root {
        findings.extend(runtime_state::without_bundle(&scene, root));
    }
    for dir in &options.sockets {
        findings.extend(sockets::without_listener(&scene, dir));
    }
    // What ends first is first: a shim before its bundle, its bundle before what that refers to.
    findings.sort_by_key(|finding| finding.kind);
    Ok(findings)
}
