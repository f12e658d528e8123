//! How a test or the demo says that something is off: a sentence, and the line of the test that said it.

use std::fmt;
use std::panic::Location;

/// The result of everything in the harness.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// A reason why a test fails. Made by `?` from any error, which keeps the place of that `?`.
pub struct Failure {
    what: String,
    at: &'static Location<'static>,
}

impl Failure {
    /// A failure in words.
    #[track_caller]
    pub fn new(what: impl fmt::Display) -> Self {
        Self { what: what.to_string(), at: Location::caller() }
    }

    /// The same failure, told from one step further out.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.what = format!("{doing}: {}", self.what);
        self
    }
}

/// Adds to an error what was being done.
pub trait Context<T> {
    /// Names what was being done when this went wrong.
    ///
    /// # Errors
    /// The error itself, told with `doing`.
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Failure>> Context<T> for std::result::Result<T, E> {
    #[track_caller]
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => {
                let mut failure = error.into().context(doing);
                failure.at = Location::caller();
                Err(failure)
            }
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        let mut what = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            what = format!("{what}: {inner}");
            source = inner.source();
        }
        Self { what, at: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// What the test runner prints of a failed test.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {})", self.what, self.at)
    }
}

/// Fails the scenario with a sentence unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            return Err($crate::failure::Failure::new(format!($($sentence)+)));
        }
    };
}

/// Fails the scenario, showing both values, unless they are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($sentence:tt)+) => {
        match (&$left, &$right) {
            (left, right) => {
                if left != right {
                    return Err($crate::failure::Failure::new(format!(
                        "{}: {left:?} is not {right:?}",
                        format!($($sentence)+)
                    )));
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_mark_keeps_its_line_and_the_chain() {
        fn read() -> Result<String> {
            let text = std::fs::read_to_string("/nonexistent/x")?;
            Ok(text)
        }
        let failure = read().expect_err("no such file");
        assert!(format!("{failure:?}").contains("failure.rs:"), "{failure:?}");
        assert!(failure.to_string().contains("No such file"));
        let told = Err::<(), _>(failure).context("reading x").expect_err("still an error");
        assert!(told.to_string().starts_with("reading x: No such file"));
    }
}
