//! The shim's log: one line per event, in the form that containerd's own shims write, to stderr.
//!
//! In a serving shim stderr is the fifo `log` of the bundle, which the manager copies to its own
//! log. Nobody may be reading: a line that does not fit is dropped, and the loss counted and told
//! with the next one that does.

use std::{
    fmt::{self, Write as _},
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::{error::shorten, publisher::timestamp};

/// The longest line, its end included: what a fifo takes as a whole or not at all (pipe(7)). Of a
/// longer one the first part might be in the log and the rest be lost.
const MAX_LINE: usize = libc::PIPE_BUF;

/// Writes events to stderr. Spans are not used in a shim: they would be kept for every call.
#[derive(Debug)]
pub struct Log {
    max: Level,
    lost: AtomicU64,
}

impl Log {
    /// A log of everything up to this level.
    pub fn new(debug: bool) -> Self {
        Self { max: if debug { Level::DEBUG } else { Level::INFO }, lost: AtomicU64::new(0) }
    }

    /// Makes it the log of this process.
    pub fn install(self) {
        // A second log in one process: the first one stays.
        let _ = tracing::subscriber::set_global_default(self);
    }

    fn write(&self, line: &str) {
        use std::io::Write;
        let put = |line: &str| std::io::stderr().write_all(line.as_bytes()).is_ok();
        let mut lost = self.lost.swap(0, Ordering::Relaxed);
        // Two writes, each of which is whole or not at all.
        if lost > 0 && put(&format!("level=warning msg=\"{lost} lines of the log were lost\"\n")) {
            lost = 0;
        }
        lost += u64::from(!put(line));
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.max
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.max.into())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::new(*event.metadata().level());
        event.record(&mut line);
        self.write(&line.finish());
    }
}

/// A line being put together.
struct Line {
    head: String,
    fields: String,
}

impl Line {
    fn new(level: Level) -> Self {
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let mut head = String::with_capacity(200);
        let _ = write!(head, "time=\"{}\" level={level} msg=", Utc(SystemTime::now()));
        Self { head, fields: String::new() }
    }

    fn finish(mut self) -> String {
        self.head.push_str(&self.fields);
        shorten(&mut self.head, MAX_LINE - 1);
        self.head.push('\n');
        self.head
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            let _ = write!(self.head, "{text:?}");
        } else {
            let _ = write!(self.fields, " {}={text:?}", field.name());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// A time as `2006-01-02T15:04:05.000000Z`.
struct Utc(SystemTime);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = timestamp(self.0);
        let (days, second) = (at.seconds.div_euclid(86_400), at.seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let (second, micros) = (second % 60, at.nanos / 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// The date of a day counted from 1970-01-01, by the Gregorian calendar: eras of 400 years, and
/// years that begin in March, so that the odd day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_is_one_write() {
        let mut line = Line::new(Level::INFO);
        line.fields = "é".repeat(MAX_LINE);
        let line = line.finish();
        assert!(line.len() <= MAX_LINE && line.ends_with(" [...]\n"), "{}", line.len());
        let mut short = Line::new(Level::INFO);
        short.fields = " a=1".to_owned();
        assert!(short.finish().ends_with(" a=1\n"));
    }

    #[test]
    fn times_are_utc() {
        let at = |seconds, nanos| {
            Utc(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)).to_string()
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_827_696, 123_456_789), "2000-02-29T12:34:56.123456Z");
        assert_eq!(at(1_798_761_599, 0), "2026-12-31T23:59:59.000000Z");
    }
}
