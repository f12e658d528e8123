//! `make demo`: containers through our shim, under three containerds and two OCI runtimes, for a person to watch; then
//! through our task manager in front of each of them.

mod managed;
mod scenes;

use std::process::ExitCode;

use integration::containerd::SERIES;
use integration::demo::show;
use integration::failure::Result;
use integration::fixture::Fixture;
use integration::page::Page;
use integration::{hybrid, paths};

fn main() -> ExitCode {
    show(all_series)
}

async fn all_series(page: &mut Page, fixture: &Fixture) -> Result<bool> {
    hybrid::free_unified_hierarchy()?;
    let shim = paths::shim()?;
    page.title(&format!(
        "{} ({} kB), run by ctr through containerd",
        shim.display(),
        std::fs::metadata(&shim)?.len() / 1024
    ));
    let mut good = true;
    for series in SERIES {
        if paths::containerd(series).is_none() {
            page.skipped(&format!("containerd {series}"), "not in this machine's mirror");
            continue;
        }
        good &= scenes::play(page, fixture, series).await?;
    }
    Ok(good)
}
