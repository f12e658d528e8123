//! Root filesystems out of mounts.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_shim_protos::api::{CreateTaskResponse, Mount};
use integration::bundle::Bundle;
use integration::failure::{Failure, Result};
use integration::fakerunc::{FakeRunc, Gate, Rule};
use integration::fixture::Fixture;
use integration::leak::{Kind, Snapshot};
use integration::rootfs::{mount, mount_at, mounted};
use integration::scenario::{scenario, skip};
use integration::shim::{Launch, Shim};
use integration::spec::Spec;
use integration::stdio::{Stdio, collect};
use integration::task::{Answer, create_request};
use integration::{deadline, ensure, ensure_eq, paths};

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
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
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
        let options = ["rbind", "ro", "nosuid", "nodev"];
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
        let bind = ["rbind", "rw"];
        let second = mount_at("/var", "bind", &extra.display().to_string(), &bind);
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
        let bind = ["rbind", "rw"];
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

#[test]
fn options_of_a_bind_are_set_on_the_mount_and_not_on_its_source() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.0 set some of them only with ro");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?;
        let source = root.display().to_string();
        let mut fake = FakeRunc::install(fixture)?;
        for (name, options) in [
            ("ro", &["ro", "nosuid", "nodev", "noatime"][..]),
            ("rw", &["rw", "nosuid", "nodev", "noexec"][..]),
        ] {
            let bundle = fixture.bundle(name, &Spec::new(&["true"]))?;
            let shim = Launch::new(fixture, &bundle).start().await?;
            let all: Vec<&str> = ["rbind"].iter().chain(options).copied().collect();
            // Looked at while the runtime is called: nothing can be run from one of them.
            let gate = Gate::new(fixture, name);
            let rule = Rule::on("create").fails("enough seen");
            fake.obey(&[Rule { gate: Some(gate.path.clone()), ..rule }])?;
            let mut request = create_request(&bundle, &Stdio::null());
            request.rootfs = vec![mount("bind", &source, &all)];
            request.options = Some(integration::container::with_runtime(&fake.path)?).into();
            let creation =
                shim.tasks.call::<CreateTaskResponse>("Create", &request, deadline::HANG);
            let look = async {
                gate.reached().await?;
                let there = mounted(&bundle.dir.join("rootfs"));
                fs::write(root.join("etc/written"), "")?;
                gate.open()?;
                there
            };
            let (created, there) = tokio::join!(creation, look);
            ensure!(created.is_err(), "created");
            let there = there?;
            let (point, set) = there.first().ok_or_else(|| Failure::new("nothing is mounted"))?;
            ensure!(point == Path::new("") && there.len() == 1, "{there:?}");
            for option in options {
                ensure!(set.contains(&(*option).to_owned()), "no {option} in {set:?}");
            }
            ensure!(mounted(&bundle.dir)?.is_empty(), "mounts stay");
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn many_mounts_are_made_in_order_and_all_go_with_delete() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim of 1.6 knows no targets");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?.display().to_string();
        let at = |target: &str, kind: &str, options: &[&str]| {
            mount_at(target, kind, if kind == "bind" { &root } else { kind }, options)
        };
        let mounts = vec![
            at("", "bind", &["rbind", "rw"]),
            at("/var", "tmpfs", &["size=1m", "mode=755"]),
            // On what the one before it has covered.
            at("var", "tmpfs", &["size=2m", "nosuid"]),
            at("/var/../etc", "bind", &["bind", "ro"]),
        ];
        let bundle = fixture.bundle("a", &Spec::shell("touch /var/x && ! touch /etc/x"))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        create(&shim, &bundle, &Stdio::null(), mounts).await?;
        let rootfs = bundle.dir.join("rootfs");
        let points: Vec<String> =
            mounted(&rootfs)?.iter().map(|(point, _)| point.display().to_string()).collect();
        ensure_eq!(points, ["", "var", "var", "etc"], "mounts");
        shim.tasks.start(&bundle.id, "").await?;
        ensure_eq!(shim.tasks.wait(&bundle.id, "").await?.exit_status, 0, "exit status");
        // What somebody else has mounted there goes, too.
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(rootfs.join("root"))
            .status()?;
        ensure!(status.success(), "mount: {status}");
        shim.tasks.delete(&bundle.id, "").await?;
        ensure!(mounted(&bundle.dir)?.is_empty(), "{:?}", mounted(&bundle.dir)?);
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn each_of_many_mounts_may_fail_and_nothing_stays() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim of 1.6 knows no targets");
    }
    scenario(async |fixture| {
        let sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?.display().to_string();
        let second = mount_at("/var", "tmpfs", "tmpfs", &["size=1m"]);
        let third = mount_at("/tmp", "bind", &root, &["rbind"]);
        let good = [mount("bind", &root, &["rbind", "rw"]), second, third];
        let lost = mount_at("/no/such/place", "tmpfs", "tmpfs", &["rw"]);
        let bad = [
            ("a missing source", mount("bind", "/nonexistent", &["rbind"])),
            ("an unknown filesystem", mount("nofs", "nofs", &["rw"])),
            ("an unknown option", mount("tmpfs", "tmpfs", &["no-such-option=1"])),
            ("a missing target", lost),
            ("no mapping", mount("bind", &root, &["rbind", "uidmap=0:1:x", "gidmap=0:1:1"])),
        ];
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        for (what, wrong) in &bad {
            for position in 0..=good.len() {
                // A target is looked for in what is mounted already.
                let mut mounts: Vec<Mount> = good.iter().take(position).cloned().collect();
                mounts.push(wrong.clone());
                let answer = create(&shim, &bundle, &Stdio::null(), mounts).await;
                let failed = answer.is_err();
                ensure!(failed, "created with {what} at {position}");
                let left = mounted(&bundle.dir)?;
                ensure!(left.is_empty(), "after {what} at {position}: {left:?}");
            }
        }
        shim.shutdown(&bundle.id).await?;
        shim.gone().await?;
        ensure!(sink.words(&bundle.id)?.is_empty(), "events of what never was");
        Ok(())
    })
}

#[test]
fn ids_of_a_bind_are_mapped() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shims before 2.0 do not know mappings");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?;
        // Owned by somebody inside the mapping, and by somebody outside.
        for (name, owner) in [("mine", 7), ("strange", 70_000)] {
            fs::write(root.join("etc").join(name), "")?;
            std::os::unix::fs::chown(root.join("etc").join(name), Some(owner), Some(owner))?;
        }
        let options = ["rbind", "rw", "uidmap=0:100000:65536", "gidmap=0:200000:65536"];
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let mounts = vec![mount("bind", &root.display().to_string(), &options)];
        if let Err(error) = create(&shim, &bundle, &Stdio::null(), mounts).await {
            ensure!(mounted(&bundle.dir)?.is_empty(), "mounts stay");
            shim.shutdown(&bundle.id).await?;
            shim.gone().await?;
            return skip(&format!("no mappings on this filesystem: {error}"));
        }
        let seen = |name: &str| -> Result<(u32, u32)> {
            let data = fs::metadata(bundle.dir.join("rootfs/etc").join(name))?;
            Ok((data.uid(), data.gid()))
        };
        ensure_eq!(seen("passwd")?, (100_000, 200_000), "owner of root's");
        ensure_eq!(seen("mine")?, (100_007, 200_007), "owner of another's");
        ensure_eq!(seen("strange")?, (65_534, 65_534), "owner of a stranger's");
        let source = fs::metadata(root.join("etc/passwd"))?;
        ensure_eq!((source.uid(), source.gid()), (0, 0), "owner at the source");
        shim.tasks.start(&bundle.id, "").await?;
        ensure_eq!(shim.tasks.wait(&bundle.id, "").await?.exit_status, 0, "exit status");
        shim.retire(&bundle.id).await?;
        shim.gone().await
    })
}

#[test]
fn links_in_the_root_filesystem_lead_no_mount_out_of_it() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim of 1.6 knows no targets");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let root = fixture.rootfs()?;
        let outside = fixture.file("outside");
        fs::create_dir_all(&outside)?;
        // To the host's directory by its name, upwards, and to one inside by either way.
        symlink(&outside, root.join("absolute"))?;
        symlink(format!("../../../../../../../..{}", outside.display()), root.join("upwards"))?;
        symlink("/var", root.join("inside"))?;
        symlink("../../../../etc", root.join("tmp/inside-too"))?;
        symlink("loop", root.join("loop"))?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        let with = |target: &str| {
            let one = mount_at(target, "tmpfs", "tmpfs", &["rw"]);
            let first = mount("bind", &root.display().to_string(), &["rbind", "rw"]);
            vec![first, one]
        };
        for target in ["absolute", "/upwards", "upwards/..//upwards", "loop", "loop/x"] {
            let answer = create(&shim, &bundle, &Stdio::null(), with(target)).await;
            ensure!(answer.is_err(), "mounted on {target}");
            ensure!(mounted(&outside)?.is_empty(), "{target} leads out");
            ensure!(mounted(&bundle.dir)?.is_empty(), "mounts stay after {target}");
        }
        // `..` ends at the root.
        let dots = format!("../../..{}", outside.display());
        ensure!(create(&shim, &bundle, &Stdio::null(), with(&dots)).await.is_err(), "{dots}");
        for (target, point) in [("inside", "var"), ("tmp/inside-too", "etc"), ("../../var", "var")]
        {
            create(&shim, &bundle, &Stdio::null(), with(target)).await?;
            let points = mounted(&bundle.dir.join("rootfs"))?;
            ensure!(
                points.iter().any(|(one, _)| one == Path::new(point)),
                "{target} is not {point}: {points:?}"
            );
            shim.tasks.delete(&bundle.id, "").await?;
        }
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}
