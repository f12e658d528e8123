//! What a client may write into the stdin, stdout and stderr fields of a request.
//!
//! The strings are URIs as Go's `net/url` reads them, because that is what clients build them
//! with; a string without a scheme is a path and taken as it is.

use std::{
    collections::HashSet,
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use runtime_proto::errdefs::Code;

use crate::error::{Error, Result};

/// Where one stream comes from or goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nowhere: the client left the field empty.
    Null,
    /// A fifo (or another existing file) the client made.
    Path(PathBuf),
    /// A log file of ours to create and append to.
    File(PathBuf),
    /// A logging binary to start.
    Binary(LoggingUri),
}

/// A logging binary as its URI describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggingUri {
    pub(crate) program: PathBuf,
    /// Each query key, followed by its first value.
    pub(crate) args: Vec<OsString>,
    /// `binary-v2`: the logger must say that it is ready, its death is not taken for it.
    pub(crate) strict: bool,
}

impl Target {
    /// Reads one of the three fields.
    pub(crate) fn parse(uri: &str) -> Result<Self> {
        if uri.is_empty() {
            return Ok(Self::Null);
        }
        let Some((scheme, rest)) = split_scheme(uri)? else {
            return Ok(Self::Path(plain_path(uri)?));
        };
        let strict = match scheme.as_str() {
            "fifo" => return Ok(Self::Path(url_path(uri, rest)?)),
            "file" => return Ok(Self::File(url_path(uri, rest)?)),
            "binary" => false,
            "binary-v2" => true,
            _ => return Err(invalid(format!("unknown STDIO scheme {scheme}"))),
        };
        Ok(Self::Binary(LoggingUri {
            program: url_path(uri, rest)?,
            args: query_args(rest)?,
            strict,
        }))
    }
}

/// The scheme in lower case and what follows its colon; `None` when there is no scheme.
fn split_scheme(uri: &str) -> Result<Option<(String, &str)>> {
    for (index, byte) in uri.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index > 0 => {
                return Ok(Some((uri[..index].to_ascii_lowercase(), &uri[index + 1..])));
            }
            b':' => return Err(invalid(format!("stdio {uri:?} has an empty scheme"))),
            _ => return Ok(None),
        }
    }
    Ok(None)
}

fn plain_path(path: &str) -> Result<PathBuf> {
    if path.contains('\0') {
        return Err(invalid(format!("stdio path {path:?} contains a NUL byte")));
    }
    Ok(Path::new(path).to_path_buf())
}

/// The decoded path of a URL whose scheme was cut off: authority, query and fragment fall away.
fn url_path(uri: &str, rest: &str) -> Result<PathBuf> {
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
    let path = match rest.strip_prefix("//") {
        Some(after) => after.find('/').map_or("", |slash| &after[slash..]),
        None => rest,
    };
    let decoded = unescape(path, false)
        .ok_or_else(|| invalid(format!("stdio {uri:?} has an invalid percent escape")))?;
    if !decoded.starts_with(b"/") {
        return Err(invalid(format!("stdio {uri:?} names no absolute path")));
    }
    if decoded.contains(&0) {
        return Err(invalid(format!("stdio {uri:?} contains a NUL byte")));
    }
    Ok(OsString::from_vec(decoded).into())
}

/// Arguments from the query, in the order in which the keys first appear. Go drops pairs it cannot
/// decode and clients depend on nothing else, so they are dropped here too.
fn query_args(rest: &str) -> Result<Vec<OsString>> {
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let mut args = Vec::new();
    let mut seen = HashSet::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(key), Some(value)) = (unescape(key, true), unescape(value, true)) else {
            continue;
        };
        if key.contains(&0) || value.contains(&0) {
            return Err(invalid("an argument of the logging binary contains a NUL byte"));
        }
        if seen.insert(key.clone()) {
            args.extend([key, value].map(OsString::from_vec));
        }
    }
    Ok(args)
}

/// Percent-decoding; in a query `+` is a space. `None` when an escape is not two hex digits.
fn unescape(text: &str, query: bool) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            b'+' if query => b' ',
            other => other,
        });
    }
    Some(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

fn invalid(context: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, context)
}
