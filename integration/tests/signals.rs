//! Signals to the serving shim itself.

use std::time::Duration;

use integration::container::Container;
use integration::failure::Result;
use integration::scenario::scenario;
use integration::shim::is_alive;
use integration::spec::Spec;
use integration::{ensure, ensure_eq};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What a system that goes down gives a service before it kills it is many times this.
const PROMPT: Duration = Duration::from_secs(15);

#[test]
fn term_and_int_end_the_shim_and_leave_the_container_running() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        for (name, signal) in [("term", Signal::SIGTERM), ("int", Signal::SIGINT)] {
            let container = Container::run(fixture, name, &Spec::new(&["sleep", "1000"])).await?;
            kill(Pid::from_raw(container.shim.pid.try_into()?), signal)?;
            container.shim.gone_within(PROMPT).await?;
            ensure!(is_alive(container.pid), "init died with the shim at {signal}");
            let socket = container.shim.started.socket();
            ensure!(!socket.exists(), "{} stays after {signal}", socket.display());
            let launch = integration::shim::Launch::new(fixture, &container.bundle);
            let ran = launch.run("delete").await?;
            ensure!(ran.status.success(), "{}", ran.stderr);
        }
        Ok(())
    })
}

#[test]
fn pipe_hup_and_usr1_change_nothing() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let container = Container::run(fixture, "a", &Spec::new(&["sleep", "1000"])).await?;
        let shim = Pid::from_raw(container.shim.pid.try_into()?);
        for signal in [Signal::SIGPIPE, Signal::SIGUSR1] {
            for _ in 0..100 {
                kill(shim, signal)?;
            }
            let name = signal.as_str().to_lowercase();
            container.exec(&name, &["sh", "-c", "exit 6"]).await?;
            let exit = container.shim.tasks.wait(container.id(), &name).await?;
            ensure_eq!(exit.exit_status, 6, "an exec after {signal}");
        }
        container.retire().await
    })
}

#[test]
fn shim_without_container_ends_on_term() -> Result {
    scenario(async |fixture| {
        let _sink = fixture.fake_containerd()?;
        let bundle = fixture.bundle("a", &Spec::new(&["true"]))?;
        let shim = integration::shim::Launch::new(fixture, &bundle).start().await?;
        kill(Pid::from_raw(shim.pid.try_into()?), Signal::SIGTERM)?;
        shim.gone_within(PROMPT).await?;
        ensure!(!shim.started.socket().exists(), "the socket stays");
        Ok(())
    })
}
