//! critest: the tests that a runtime is accepted by, against a node. What needs a registry outside is left out by name.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::node::Node;
use super::tools;
use crate::failure::{Context, Failure, Result};
use crate::image::Image;

/// The image of most containers.
const IMAGE: &str = "localhost/critest:test";

/// The image of the web server, which critest names without a command.
const WEB: &str = "localhost/web:test";

/// Far above what all of it takes on a busy machine: finds one that hangs.
const LONGEST: Duration = Duration::from_secs(540);

/// Why a spec is left out that names an image in its own code: those of others can be given.
const OWN_IMAGE: &str = "names an image of its own, in a registry outside";

/// Specs that are not run, by a part of their names, with the reason.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("Image Manager", "pulls from registries"),
    ("Image Consistency", "pulls from registries"),
    ("Image Identifier Consistency", "pulls from registries"),
    ("Image Volume", "pulls from registries"),
    ("Multiple Containers", OWN_IMAGE),
    ("runtime should support HostPID", OWN_IMAGE),
    ("runtime should support PodPID", OWN_IMAGE),
    ("runtime should support ContainerPID", OWN_IMAGE),
    ("SupplementalGroupsPolicy", OWN_IMAGE),
    ("NoNewPrivs", OWN_IMAGE),
    ("portforward in host network", OWN_IMAGE),
    ("runtime should support MaskedPaths", "hides `ls`, which Debian's busybox has in its shell"),
    ("benchmark about", "measures, and is run by a command of its own"),
];

/// What the image has that Debian's busybox lacks, for one spec each.
const PGREP: &[u8] = b"#!/bin/sh
for dir in /proc/[0-9]*; do
    if [ \"$(cat $dir/comm 2>/dev/null)\" = \"$1\" ]; then echo ${dir#/proc/}; fi
done
";
const IPCS: &[u8] = b"#!/bin/sh
exec cat /proc/sysvipc/shm
";
const USERS: &[u8] = b"root:x:0:0::/root:/bin/sh
nobody:x:65534:65534::/:/bin/sh
";

/// What became of the specs.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of those that passed.
    pub passed: Vec<String>,
    /// Names of those that were not run, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Names of those that failed, with what they say; and of those that were not run without a reason.
    pub failed: Vec<(String, String)>,
}

/// Runs all specs but those that are left out.
///
/// # Errors
/// When it does not come to its end. Specs that fail are in the outcome.
pub async fn run(node: &Node<'_>) -> Result<Outcome> {
    let serve = ["httpd", "-f", "-p", "80", "-h", "/tmp"];
    let web = Image::busybox().named(&[WEB]).running(&serve);
    node.import(&web.with_file("tmp/index.html", 0o644, b"<p>here\n")).await?;
    let image = Image::busybox().named(&[IMAGE]).with_file("bin/pgrep", 0o755, PGREP);
    let image = image.with_file("bin/ipcs", 0o755, IPCS);
    node.import(&image.with_file("etc/passwd", 0o644, USERS)).await?;
    let images = node.dir().join("images.yaml");
    let text = format!("defaultTestContainerImage: {IMAGE}\nwebServerTestImage: {WEB}\n");
    fs::write(&images, text)?;
    let report = node.dir().join("critest.json");
    let left_out: Vec<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    let mut command = node.command(&tools::critest()?);
    command
        .arg("--config")
        .arg(node.dir().join("crictl.yaml"))
        .args(["--runtime-endpoint", &node.endpoint(), "--image-endpoint", &node.endpoint()])
        .arg(format!("--test-images-file={}", images.display()))
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .arg(format!("--ginkgo.skip={}", left_out.join("|")))
        .arg("--ginkgo.no-color");
    let log = fs::File::create(node.dir().join("critest.log"))?;
    command.current_dir(node.dir()).stdout(log.try_clone()?).stderr(Stdio::from(log));
    let run = tokio::time::timeout(LONGEST, command.status()).await;
    run.map_err(|_| Failure::new(format!("critest hangs; its log is in {:?}", node.dir())))??;
    let report = fs::read(&report).context("critest's report")?;
    outcome(&serde_json::from_slice(&report)?)
}

/// Reads the runner's report: suites of specs, each with its state.
fn outcome(report: &Value) -> Result<Outcome> {
    let suites = report.as_array().ok_or_else(|| Failure::new("a report without suites"))?;
    let specs = suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten();
    let mut outcome = Outcome::default();
    for spec in specs.filter(|spec| spec["LeafNodeType"] == "It") {
        let texts = spec["ContainerHierarchyTexts"].as_array().cloned().unwrap_or_default();
        let words = texts.iter().chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
        let name = words.collect::<Vec<_>>().join(" ").replace("[k8s.io] ", "");
        let why = spec["Failure"]["Message"].as_str().unwrap_or_default().to_owned();
        match spec["State"].as_str() {
            Some("passed") => outcome.passed.push(name),
            Some("skipped" | "pending") => {
                let left_out = LEFT_OUT.iter().find(|(part, _)| name.contains(part));
                let why = left_out.map_or(why, |(_, why)| (*why).to_owned());
                let list = if why.is_empty() { &mut outcome.failed } else { &mut outcome.skipped };
                list.push((name, why));
            }
            _ => outcome.failed.push((name, why)),
        }
    }
    Ok(outcome)
}
