//! The end of a case: everything is ended, and what can be seen from outside of the shim is noted.

use std::time::Duration;

use super::play::{Note, Player};
use super::script::Case;
use crate::deadline;
use crate::event::Event;
use crate::failure::Result;
use crate::fakerunc;
use crate::shim::is_alive;
use crate::task::Status;

/// How long a shim gets for its own end, and for the end of what was killed.
const END: Duration = Duration::from_secs(20);

const SIGKILL: u32 = 9;

impl Player<'_> {
    /// Ends everything, and notes what is seen from outside of the shim.
    pub(super) async fn finish(mut self, case: &Case) -> Result<Vec<Note>> {
        self.fake.obey(&[])?;
        for gate in std::mem::take(&mut self.gates).into_values() {
            gate.open()?;
        }
        for planned in &case.containers {
            self.remove(&self.fixture.id(&planned.name)).await;
        }
        // It may have been told before, and be gone.
        let _ = self.tasks.shutdown("").await;
        let ends = deadline::until("the shim's end", END, || !is_alive(self.shim)).await.is_ok();
        for planned in &case.containers {
            let (name, id) = (&planned.name, self.fixture.id(&planned.name));
            // Go's shims tell of a lack of memory now and then when a v1 cgroup is removed. No case is about that.
            let events = self.sink.events(&id)?.into_iter();
            let events = events.filter(|event| !matches!(event, Event::Oom(_)));
            let events: Vec<String> = events.map(|event| self.names.event(&event)).collect();
            self.note(&format!("events of {name}"), events.join(", "));
            let calls = self.runtime_calls(&id)?;
            self.note(&format!("runtime calls for {name}"), calls.join("; "));
        }
        self.note("runtime's global flags", self.global_flags()?);
        self.note("the shim", if ends { "ends" } else { "stays" }.to_owned());
        Ok(self.notes)
    }

    /// Kills and deletes a container, if it is there; waits for the events of that.
    async fn remove(&self, id: &str) {
        // Whatever is answered from here on: the script was about that.
        if let Ok(status) = self.tasks.status(id, "").await {
            if status.enum_value_or_default() != Status::STOPPED {
                let _ = self.tasks.kill(id, "", SIGKILL).await;
                let _ = self.tasks.wait_for(id, "", END).await;
            }
            let _ = self.tasks.delete(id, "").await;
        }
        let told =
            || self.sink.words(id).is_ok_and(|words| words.last().is_some_and(|w| w == "delete"));
        if self.tasks.connect_task(id).await.is_ok()
            && !self.sink.words(id).unwrap_or_default().is_empty()
        {
            // Shims before 2.3 forget events that are on their way when they end.
            let _ = deadline::until("the last event", END, told).await;
        }
    }

    /// How the runtime was called for a container, without the flags that are the same for all calls.
    fn runtime_calls(&self, id: &str) -> Result<Vec<String>> {
        let of_id = |call: &&fakerunc::Call| call.has(id);
        let calls = self.fake.calls()?;
        Ok(calls
            .iter()
            .filter(of_id)
            .map(|call| {
                let mut words = Vec::new();
                let own = call.argv.iter().skip_while(|word| **word != call.subcommand);
                let mut previous = "";
                for word in own {
                    let temporary = matches!(previous, "--process" | "--console-socket");
                    words.push(if temporary { "FILE".to_owned() } else { self.names.named(word) });
                    previous = word;
                }
                words.join(" ")
            })
            .collect())
    }

    fn global_flags(&self) -> Result<String> {
        let mut flags: Vec<String> = self
            .fake
            .calls()?
            .iter()
            .map(|call| {
                let global = call.argv.iter().take_while(|word| **word != call.subcommand);
                global.map(|word| self.names.named(word)).collect::<Vec<_>>().join(" ")
            })
            .collect();
        flags.sort_unstable();
        flags.dedup();
        Ok(flags.join("; "))
    }

    fn note(&mut self, step: &str, seen: String) {
        self.notes.push(Note { step: step.to_owned(), seen });
    }
}
