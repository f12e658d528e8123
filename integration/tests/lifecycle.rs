//! Create, start, wait, delete, shut down: the life of one container, and what is said of it at every point.

use integration::failure::Result;
use integration::scenario::scenario;
use integration::shim::{ERAS, Launch};
use integration::spec::Spec;
use integration::stdio::Stdio;
use integration::task::{Status, V2, V3};
use integration::{ensure, ensure_eq, shim};

#[test]
fn one_shot_container_lives_and_leaves_nothing_in_every_era() -> Result {
    scenario(async |fixture| {
        for era in ERAS {
            let bundle =
                fixture.bundle(&format!("{era:?}").replace('_', "."), &Spec::shell("exit 7"))?;
            let shim = Launch::new(fixture, &bundle).era(era).start().await?;
            let id = bundle.id.as_str();
            let pid = shim.tasks.create(&bundle, &Stdio::null()).await?;
            ensure!(pid > 0 && shim::is_alive(pid), "init {pid} is not there");
            ensure_eq!(
                shim.tasks.status(id, "").await?.enum_value_or_default(),
                Status::CREATED,
                "status"
            );
            ensure_eq!(shim.tasks.start(id, "").await?, pid, "pid of start");
            let exit = shim.tasks.wait(id, "").await?;
            ensure_eq!(exit.exit_status, 7, "exit status");
            let deleted = shim.tasks.delete(id, "").await?;
            ensure_eq!((deleted.pid, deleted.exit_status), (pid, 7), "delete");
            shim.shutdown(id).await?;
            shim.gone().await?;
        }
        Ok(())
    })
}

#[test]
fn both_task_services_answer() -> Result {
    scenario(async |fixture| {
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = Launch::new(fixture, &bundle).start().await?;
        for service in [V2, V3] {
            let answer = shim.tasks.speaking(service).connect_task("none").await?;
            ensure_eq!(answer.shim_pid, shim.pid, "{service}");
        }
        shim.shutdown(&bundle.id).await?;
        shim.gone().await
    })
}
