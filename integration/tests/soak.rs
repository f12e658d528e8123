//! A short soak: the long one is a program, `make soak`.

use integration::failure::Result;
use integration::scenario::{scenario, skip};
use integration::soak::{Load, Soak};
use integration::{hybrid, paths};

#[test]
fn shim_holds_after_hundreds_of_processes_what_it_held_before() -> Result {
    const LOAD: Load = Load { containers: 40, execs: 200, orphans: 500 };
    if paths::is_go_shim() {
        return skip("what Go's runtime keeps of its memory is its own affair");
    }
    let runtime = match paths::crun() {
        Ok(crun) => {
            hybrid::free_unified_hierarchy()?;
            crun
        }
        Err(_) => paths::runc()?,
    };
    scenario(async |fixture| {
        let soak = Soak::start(fixture, runtime).await?;
        soak.run(LOAD, |_| {}).await?.check()?;
        soak.end().await
    })
}
