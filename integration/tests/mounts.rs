//! Root filesystems out of mounts.

use std::path::PathBuf;

use containerd_shim_protos::api::{CreateTaskResponse, Mount};
use integration::bundle::Bundle;
use integration::failure::{Failure, Result};
use integration::fixture::Fixture;
use integration::leak::{Kind, Snapshot};
use integration::scenario::scenario;
use integration::shim::{Launch, Shim};
use integration::spec::Spec;
use integration::stdio::{Stdio, collect};
use integration::task::{Answer, create_request};
use integration::{deadline, ensure, ensure_eq};

fn mount(kind: &str, source: &str, options: &[String]) -> Mount {
    let mut mount = Mount::new();
    (mount.type_, mount.source) = (kind.to_owned(), source.to_owned());
    mount.options = options.to_vec();
    mount
}

async fn create(shim: &Shim, bundle: &Bundle, stdio: &Stdio, mounts: Vec<Mount>) -> Answer<u32> {
    let mut request = create_request(bundle, stdio);
    request.rootfs = mounts;
    let answer: CreateTaskResponse = shim.tasks.call("Create", &request, deadline::HANG).await?;
    Ok(answer.pid)
}

/// What a shell script prints in a container on these mounts.
async fn output_on(fixture: &Fixture, mounts: Vec<Mount>, script: &str) -> Result<String> {
    let bundle = fixture.bundle("a", &Spec::shell(script))?;
    let shim = Launch::new(fixture, &bundle).start().await?;
    let stdio = fixture.fifos("a")?.without_stdin();
    let (out, err) = (collect(&stdio.stdout)?, collect(&stdio.stderr)?);
    create(&shim, &bundle, &stdio, mounts).await?;
    shim.tasks.start(&bundle.id, "").await?;
    shim.tasks.wait(&bundle.id, "").await?;
    shim.retire(&bundle.id).await?;
    shim.gone().await?;
    let said = err.text().await?;
    ensure!(said.is_empty(), "{said}");
    out.text().await
}

#[test]
fn overlay_of_many_long_layers_is_mounted() -> Result {
    const LAYERS: usize = 60;
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        // As a snapshotter lays them: far down, beside each other.
        let layers = fixture.file(&format!("{0}/{0}/snapshots", "long".repeat(12)));
        let base = layers.join("base/fs");
        integration::rootfs::make(&base)?;
        let mut lower = Vec::new();
        for number in 0..LAYERS {
            let dir = layers.join(format!("{number:03}/fs"));
            std::fs::create_dir_all(&dir)?;
            std::fs::write(dir.join(format!("layer{number}")), "")?;
            lower.push(dir.display().to_string());
        }
        lower.push(base.display().to_string());
        let (upper, work) = (fixture.file("upper"), fixture.file("work"));
        for dir in [&upper, &work] {
            std::fs::create_dir_all(dir)?;
        }
        let options = [
            format!("lowerdir={}", lower.join(":")),
            format!("upperdir={}", upper.display()),
            format!("workdir={}", work.display()),
        ];
        // More than the page that a mount call takes.
        ensure!(options.iter().map(String::len).sum::<usize>() > 4096, "the options are short");
        let mounts = vec![mount("overlay", "overlay", &options)];
        let text = output_on(fixture, mounts, "ls /layer* | wc -l; echo x > /written").await?;
        ensure_eq!(text.trim(), LAYERS.to_string(), "layers seen");
        ensure!(upper.join("written").exists(), "nothing in the upper directory");
        Ok(())
    })
}

#[test]
fn options_of_a_mount_are_really_set() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?.display().to_string();
        let options = ["rbind", "ro", "nosuid", "nodev"].map(str::to_owned);
        let script = "grep ' / / ' /proc/self/mountinfo || cat /proc/self/mountinfo | head -1";
        let text = output_on(fixture, vec![mount("bind", &root, &options)], script).await?;
        for option in ["nosuid", "nodev"] {
            ensure!(text.contains(option), "no {option} in {text}");
        }
        Ok(())
    })
}

#[test]
fn targets_lie_inside_the_root_filesystem() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        if integration::paths::is_go_shim() {
            return integration::scenario::skip("Go's shim of 1.6 knows no targets");
        }
        let root = fixture.rootfs()?.display().to_string();
        let extra = fixture.file("extra");
        std::fs::create_dir_all(&extra)?;
        std::fs::write(extra.join("here"), "inside\n")?;
        let bind = ["rbind".to_owned(), "rw".to_owned()];
        let mut second = mount("bind", &extra.display().to_string(), &bind);
        second.target = "/var".to_owned();
        let mounts = vec![mount("bind", &root, &bind), second];
        let text = output_on(fixture, mounts, "cat /var/here").await?;
        ensure_eq!(text, "inside\n", "the second mount");
        Ok(())
    })
}

#[test]
fn failing_mount_takes_back_those_before_it() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?.display().to_string();
        let bind = ["rbind".to_owned(), "rw".to_owned()];
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let missing = PathBuf::from("/nonexistent/layer").display().to_string();
        let mounts = vec![mount("bind", &root, &bind), mount("bind", &missing, &bind)];
        let answer = create(&shim, &bundle, &Stdio::null(), mounts).await;
        let error = answer.err().ok_or_else(|| Failure::new("created"))?;
        ensure!(error.to_string().contains("/nonexistent/layer"), "{error}");
        let now = Snapshot::take(&fixture.scope());
        let mounted = now.items().filter(|item| item.kind == Kind::Mount).count();
        ensure_eq!(mounted, 0, "mounts in {now:?}");
        // The same id can be created again.
        shim.tasks.create(&bundle, &Stdio::null()).await?;
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}
