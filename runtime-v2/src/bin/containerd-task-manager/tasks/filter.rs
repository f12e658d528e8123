//! containerd's filter language (pkg/filters): `field==value,other!="a b",third~=^x,fourth`.
//!
//! A filter is a list of selectors that all must hold; of several filters one must. A field alone
//! asks whether it is there. Values are plain words or quoted.

use std::{iter::Peekable, str::CharIndices};

use regex_lite::Regex;

/// Filters, one of which must hold; without any, everything does.
#[derive(Debug, Default)]
pub(crate) struct Filters(Vec<Vec<Selector>>);

#[derive(Debug)]
struct Selector {
    field: String,
    operator: Operator,
}

#[derive(Debug)]
enum Operator {
    Present,
    Equal(String),
    NotEqual(String),
    Matches(Box<Regex>),
}

/// Why a text is no filter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} at {at}: {why}")]
pub(crate) struct FilterError {
    text: String,
    at: usize,
    why: String,
}

/// Reads filters.
///
/// # Errors
/// At the first that is none.
pub(crate) fn any_of(filters: &[String]) -> Result<Filters, FilterError> {
    filters.iter().map(|text| Parser::new(text).filter()).collect::<Result<_, _>>().map(Filters)
}

impl Filters {
    /// Whether one of them holds, given the values of fields.
    pub(crate) fn matches<'a>(&self, value: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        let holds = |selector: &Selector| {
            let found = value(&selector.field);
            match &selector.operator {
                Operator::Present => found.is_some_and(|value| !value.is_empty()),
                Operator::Equal(wanted) => found == Some(wanted),
                Operator::NotEqual(unwanted) => found != Some(unwanted),
                Operator::Matches(pattern) => found.is_some_and(|value| pattern.is_match(value)),
            }
        };
        self.0.is_empty() || self.0.iter().any(|filter| filter.iter().all(holds))
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, rest: text.char_indices().peekable() }
    }

    fn error(&mut self, why: impl Into<String>) -> FilterError {
        let at = self.rest.peek().map_or(self.text.len(), |(at, _)| *at);
        FilterError { text: self.text.to_owned(), at, why: why.into() }
    }

    fn filter(mut self) -> Result<Vec<Selector>, FilterError> {
        let mut selectors = Vec::new();
        if self.text.is_empty() {
            return Ok(selectors);
        }
        loop {
            selectors.push(self.selector()?);
            match self.rest.next() {
                None => return Ok(selectors),
                Some((_, ',')) => {}
                Some((_, other)) => return Err(self.error(format!("unexpected {other:?}"))),
            }
        }
    }

    fn selector(&mut self) -> Result<Selector, FilterError> {
        let field = self.word(|c| c.is_ascii_alphanumeric() || "._/-\"".contains(c));
        if field.is_empty() {
            return Err(self.error("a field is missing"));
        }
        let operator = match self.word(|c| "=!~".contains(c)).as_str() {
            "" => Operator::Present,
            "==" => Operator::Equal(self.value()?),
            "!=" => Operator::NotEqual(self.value()?),
            "~=" => {
                let pattern = self.value()?;
                let regex = Regex::new(&pattern).map_err(|error| self.error(error.to_string()))?;
                Operator::Matches(Box::new(regex))
            }
            other => return Err(self.error(format!("unknown operator {other:?}"))),
        };
        Ok(Selector { field, operator })
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let mut word = String::new();
        while let Some((_, c)) = self.rest.next_if(|(_, c)| belongs(*c)) {
            word.push(c);
        }
        word
    }

    /// A plain word, or one between quotes, slashes or bars.
    fn value(&mut self) -> Result<String, FilterError> {
        let Some((_, quote)) = self.rest.next_if(|(_, c)| "\"/|".contains(*c)) else {
            let word = self.word(|c| c != ',');
            return if word.is_empty() { Err(self.error("a value is missing")) } else { Ok(word) };
        };
        let mut value = String::new();
        loop {
            match self.rest.next().map(|(_, c)| c) {
                None => return Err(self.error("a quote is not closed")),
                Some(c) if c == quote => return Ok(value),
                Some('\\') => match self.rest.next().map(|(_, c)| c) {
                    Some(c) if c == quote || c == '\\' => value.push(c),
                    // Of a regular expression.
                    Some(c) => value.extend(['\\', c]),
                    None => return Err(self.error("a quote is not closed")),
                },
                Some(c) => value.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(filters: &[&str]) -> bool {
        let filters: Vec<String> = filters.iter().map(|text| (*text).to_owned()).collect();
        any_of(&filters).unwrap().matches(&|field| match field {
            "id" => Some("c1"),
            "namespace" => Some("ns"),
            _ => None,
        })
    }

    #[test]
    fn filters_select_as_containerds_do() {
        for yes in ["", "id==c1", "id==\"c1\"", "id!=c2", "id~=^c[0-9]$", "id", "other!=x"] {
            assert!(holds(&[yes]), "{yes}");
        }
        for no in ["id==c2", "id!=c1", "id~=^x", "other", "other==x", "id==c1,namespace==x"] {
            assert!(!holds(&[no]), "{no}");
        }
        assert!(holds(&[]));
        assert!(holds(&["id==x", "namespace==ns"]));
        assert!(holds(&["id==c1,namespace==ns"]));
    }

    #[test]
    fn what_is_no_filter_is_refused_with_its_place() {
        for bad in ["==x", "id=x", "id==", "id==\"c1", "id~=(", "id==a,", "id~=|x|y"] {
            assert!(any_of(&[bad.to_owned()]).is_err(), "{bad}");
        }
        let error = any_of(&["id==".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "\"id==\" at 4: a value is missing");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-z=!~,\"/|\\\\(]{0,20}|\\PC{0,20}") {
            let _ = any_of(&[text]);
        }
    }
}
