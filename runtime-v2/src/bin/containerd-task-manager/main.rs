//! `containerd-task-manager`: a socket in front of an unmodified containerd. It serves the task
//! service itself, with the manager of this crate, and passes every other call through.
//!
//! # Parts, from the bottom up
//!
//! * `config`, `logging`, `notify`, `lock`, `listen`: what the daemon is told, and its place.
//! * `api`, `convert`: messages of gRPC, and the one place where they meet those of shims.
//! * `grpc`, `containerd`: serving a call; calling the containerd behind.
//! * `metrics`, `stores`, `events`: what the manager needs around it.
//! * `tasks`: the task service. `introspection`: what is asked about runtimes. `proxy`: everything
//!   else. `server`: connections, to any of them.
//! * `serve`: all of it together.
//! * `attach`: the same manager, called by a containerd that has this project's plugin.
//! * `ls`: the shims of any state directory. `doctor`: what they have left behind. `procfs`,
//!   `places` and `output` are what both are made of.

mod api;
mod attach;
mod config;
mod containerd;
mod convert;
mod doctor;
mod events;
mod grpc;
mod introspection;
mod listen;
mod logging;
mod ls;
mod metrics;
mod notify;
mod output;
#[cfg(test)]
mod page_tests;
mod places;
mod procfs;
mod proxy;
mod serve;
mod server;
mod stores;
mod tasks;

use std::{
    error::Error,
    io::{Write, stderr},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use config::{Given, Settings};
use small_heap::BySize;

#[global_allocator]
static ALLOCATOR: BySize = BySize;

/// containerd's task manager in front of an unmodified containerd.
#[derive(Debug, Parser)]
#[command(name = "containerd-task-manager", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve tasks, and pass all other calls to containerd
    Serve {
        /// Settings, as TOML [default: /etc/containerd-task-manager/config.toml, if it is there]
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        given: Given,
    },
    /// Serve a containerd that has been built with the plugin, which starts this itself
    Attach(attach::Options),
    /// List shims: whose they are, where they are, what they cost
    Ls(ls::Options),
    /// Find what shims and managers have left behind; exits with 1 if anything is left
    Doctor(doctor::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve { config, given } => serve(given, config).map(|()| true),
        Command::Attach(options) => attach(&options).map(|()| true),
        Command::Ls(options) => look(ls::run(options)).map(|()| true),
        Command::Doctor(options) => look(doctor::run(options)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tell(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

/// Says why, with all causes, in one line.
fn tell(error: &dyn Error) {
    let mut line = format!("containerd-task-manager: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    // Without a stderr there is nobody to tell.
    let _ = writeln!(stderr(), "{}", line.trim_end());
}

fn serve(given: Given, config: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let settings = Settings::new(given, config.as_deref())?;
    logging::start(&settings.log_level, settings.log_format)?;
    small_heap::frugal();
    let claims = serve::Claims::take(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(serve::serve(&settings, claims))?)
}

fn attach(options: &attach::Options) -> Result<(), Box<dyn Error>> {
    let verbosity = logging::start(&options.log_level, options.log_format)?;
    small_heap::frugal();
    let claims = attach::Claims::take(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(attach::serve(options, claims, verbosity))?)
}

/// Runs a command that only looks, on one thread.
fn look<T>(work: impl Future<Output = Result<T, Box<dyn Error>>>) -> Result<T, Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
