//! Containers that share a shim.

use integration::container::Container;
use integration::failure::Result;
use integration::leak::Usage;
use integration::scenario::{scenario, skip};
use integration::shim::{Form, Launch};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::{deadline, ensure, ensure_eq, paths};

const SLEEP: [&str; 2] = ["sleep", "1000"];

#[test]
fn both_annotations_make_a_group_and_the_last_one_out_ends_the_shim() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for key in ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"] {
            let tail = key.rsplit('.').next().unwrap_or_default();
            let spec = Spec::new(&SLEEP).annotation(key, &fixture.id(tail));
            let pause = Container::run(fixture, &format!("{tail}-p"), &spec).await?;
            let mut bundles = Vec::new();
            for name in ["a", "b"] {
                let bundle = fixture.bundle(&format!("{tail}-{name}"), &spec)?;
                let joined = Launch::new(fixture, &bundle).start().await?;
                ensure_eq!(joined.pid, pause.shim.pid, "the shim of {}", bundle.id);
                ensure_eq!(joined.started.address, pause.shim.started.address, "address");
                joined.tasks.create(&bundle, &Stdio::null()).await?;
                joined.tasks.start(&bundle.id, "").await?;
                bundles.push(bundle);
            }
            // The first one goes first: the shim has to stay for the others.
            pause.shim.retire(pause.id()).await?;
            for bundle in &bundles {
                ensure!(pause.shim.is_alive(), "the shim left {} alone", bundle.id);
                pause.shim.tasks.state(&bundle.id, "").await?;
                pause.shim.retire(&bundle.id).await?;
            }
            pause.shim.gone().await?;
            let socket = pause.shim.started.socket();
            ensure!(!socket.exists(), "{} stays", socket.display());
        }
        Ok(())
    })
}

#[test]
fn joining_reports_what_the_living_shim_speaks() -> Result {
    if paths::is_go_shim() {
        return skip("Go's shim reports what its own build speaks");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let old = std::path::Path::new("/usr/bin/containerd-shim-runc-v2");
        if !old.exists() {
            return skip("no Go shim on this machine");
        }
        let spec = Spec::new(&SLEEP).annotation("io.containerd.runc.v2.group", &fixture.id("g"));
        let first = fixture.bundle("a", &spec)?;
        let shim = Launch::new(fixture, &first).binary(old.into()).start().await?;
        shim.tasks.create(&first, &Stdio::null()).await?;
        let second = fixture.bundle("b", &spec)?;
        let launch = Launch::new(fixture, &second).era(integration::shim::Era::V2_3);
        let joined = launch.start().await?;
        ensure_eq!(joined.started.form, Form::Protobuf, "form");
        ensure_eq!(joined.started.version, 2, "version");
        joined.tasks.create(&second, &Stdio::null()).await?;
        shim.retire(&first.id).await?;
        shim.retire(&second.id).await?;
        shim.gone().await
    })
}

#[test]
fn files_of_a_shared_shim_do_not_grow_with_its_containers() -> Result {
    const CYCLES: usize = 25;
    if paths::is_go_shim() {
        return skip("measured for the shim of this workspace");
    }
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let group = fixture.id("g");
        let spec =
            |argv: &[&str]| Spec::new(argv).annotation("io.containerd.runc.v2.group", &group);
        let pause = Container::run(fixture, "p", &spec(&SLEEP)).await?;
        let tasks = &pause.shim.tasks;
        let cycle = async |name: &str, argv: &[&str]| {
            let bundle = fixture.bundle(name, &spec(argv))?;
            let stdio = fixture.fifos(name)?;
            let streams =
                [&stdio.stdout, &stdio.stderr].map(|path| integration::stdio::collect(path));
            if tasks.create(&bundle, &stdio).await.is_ok() {
                tasks.start(&bundle.id, "").await?;
                tasks.wait(&bundle.id, "").await?;
                tasks.delete(&bundle.id, "").await?;
            }
            drop(streams);
            std::fs::remove_dir_all(&bundle.dir)?;
            Result::Ok(())
        };
        cycle("warm", &["true"]).await?;
        let before = Usage::of(pause.shim.pid)?;
        for round in 0..CYCLES {
            cycle(&format!("c{round}"), &["true"]).await?;
            cycle(&format!("f{round}"), &["no-such-program"]).await?;
        }
        let mut last = before.clone();
        let steady = deadline::until("files and threads as before", deadline::HANG, || {
            last = Usage::of(pause.shim.pid).unwrap_or_else(|_| before.clone());
            last.fds.len() <= before.fds.len() + 2 && last.threads <= before.threads + 1
        });
        steady
            .await
            .map_err(|failure| failure.context(format!("{:?}, then {:?}", before.fds, last.fds)))?;
        pause.retire().await
    })
}
