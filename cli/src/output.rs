//! Standard output, with errors instead of panics.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use sparsimd::{Error, Result};

/// How standard output is called in messages.
const STDOUT: &str = "standard output";

/// Writes `text` and the end of the line.
pub fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|source| Error::Io { path: STDOUT.into(), source })
}

/// Writes `value` as one JSON object in one line. Numbers that JSON does not have (infinite, NaN) become null.
pub fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| Error::Io { path: STDOUT.into(), source: e.into() })?;
    line(&text)
}

/// Writes `text` and the end of the line to standard error: what is not a result.
pub fn note(text: &str) {
    // A closed standard error is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Whether the reader of standard output has gone, as `head` does: no mistake of anybody's.
pub fn is_closed_pipe(error: &Error) -> bool {
    matches!(error, Error::Io { path, source }
        if path == Path::new(STDOUT) && source.kind() == std::io::ErrorKind::BrokenPipe)
}
