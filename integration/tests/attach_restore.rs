//! A container that comes out of CRI's checkpoint of a whole container. criu is played by the runtime's stand-in.

use std::fs;

use integration::attach::{Attach, Glue, Surroundings, code_of, own_request};
use integration::containerd::Containerd;
use integration::deadline;
use integration::failure::Result;
use integration::fakerunc::{FakeRunc, Rule};
use integration::fixture::Fixture;
use integration::scenario::{scenario, skip};
use integration::shim::{is_alive, runc_options};
use integration::spec::Spec;
use integration::{ensure, ensure_eq, paths};
use runtime_proto::manager::{CreateRequest, Mount};
use tokio::process::Command;
use ttrpc::Code;

const SERIES: &str = "2";

/// A request to restore a container whose root filesystem is mounted, and which had made and removed a file.
async fn request(fixture: &Fixture, fake: &FakeRunc) -> Result<CreateRequest> {
    let rootfs = fixture.rootfs()?;
    fs::write(rootfs.join("removed"), "")?;
    let checkpoint = fixture.file("cri");
    let changed = fixture.file("changed");
    fs::create_dir_all(checkpoint.join("checkpoint"))?;
    fs::create_dir_all(&changed)?;
    fs::write(changed.join("made"), "made")?;
    fs::write(changed.join(".wh.removed"), "")?;
    let mut pack = Command::new("tar");
    pack.arg("-czf").arg(checkpoint.join("rootfs-diff.tar")).arg("-C").arg(&changed).arg(".");
    ensure!(deadline::ended(pack).await?.status.success(), "tar");
    let spec = Spec::new(&["sleep", "1000"]);
    let mut request = own_request(fixture, "restored", spec.clone())?;
    // As a bundle has it, and not as one that needs no mounts.
    let spec = spec.env(&fixture.mark()).cgroup(&format!("/{}", request.id));
    request.spec.mut_or_insert_default().value = spec.to_json();
    let mut mount = Mount::new();
    "bind".clone_into(&mut mount.type_);
    mount.source = rootfs.display().to_string();
    mount.options = vec!["rbind".to_owned(), "rw".to_owned()];
    request.rootfs = vec![mount];
    request.checkpoint = checkpoint.join("checkpoint").display().to_string();
    request.restore_from_path = true;
    let mut options = containerd_shim_protos::shim::oci::Options::new();
    options.binary_name = fake.path.display().to_string();
    request.task_options = Some(runc_options(&options)?).into();
    Ok(request)
}

/// A manager beside a containerd, and a request to restore a container, whose root filesystem and layer are there.
fn restoring(story: impl AsyncFnOnce(&Fixture, &Glue, CreateRequest) -> Result) -> Result {
    if paths::containerd(SERIES).is_none() {
        return skip("no containerd 2 in this machine's mirror");
    }
    scenario(async |fixture| {
        let containerd = Containerd::start(fixture, SERIES).await?;
        let mut fake = FakeRunc::install(fixture)?;
        fake.obey(&[Rule { restores: true, ..Rule::on("restore") }])?;
        let surroundings = Surroundings::at(fixture.dir(), &containerd.address());
        fixture.expect_empty(&surroundings.bundles(fixture.namespace()));
        fixture.offer("containerd-shim-runc-v2", &paths::shim()?)?;
        let attach = Attach::start(fixture).await?;
        let glue = attach.glue().await?;
        glue.load(&surroundings).await?;
        let request = request(fixture, &fake).await?;
        fixture.expect_socket(&containerd.address(), &request.id);
        story(fixture, &glue, request).await?;
        attach.stop().await?;
        containerd.stop().await
    })
}

#[test]
fn a_container_is_restored_with_its_changes_and_runs() -> Result {
    restoring(async |fixture, glue, request| {
        let task = glue.create(&request).await?;
        ensure!(task.pid > 0 && is_alive(task.pid), "it does not run: {}", task.pid);
        let rootfs = fixture.rootfs()?;
        ensure_eq!(fs::read_to_string(rootfs.join("made"))?, "made", "a file of the checkpoint");
        ensure!(!rootfs.join("removed").exists(), "a file that the container had removed");
        glue.remove(&request.id).await?;
        Ok(())
    })
}

#[test]
fn a_restore_that_fails_leaves_nothing() -> Result {
    restoring(async |fixture, glue, request| {
        let layer = fixture.file("cri/rootfs-diff.tar");
        let mut outside = Command::new("tar");
        outside.arg("-cPf").arg(&layer).args([
            "--transform",
            "s,^.*$,../outside,",
            "/etc/hostname",
        ]);
        ensure!(deadline::ended(outside).await?.status.success(), "tar");
        let code = code_of(glue.create(&request).await)?;
        ensure!(code != Code::ALREADY_EXISTS, "{code:?}");
        ensure_eq!(code_of(glue.get(&request.id).await)?, Code::NOT_FOUND, "after the failure");
        ensure!(!fixture.dir().join("outside").exists(), "a file outside of the container");
        Ok(())
    })
}
