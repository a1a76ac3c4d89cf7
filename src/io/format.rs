//! File formats by the ending of the name.

use std::path::Path;

use crate::error::{Error, Result};

/// A file format, with or without `.gz` behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Matrix Market, `.mtx`.
    Mtx,
    /// The Deep Learning Matrix Collection's pattern format, `.smtx`.
    Smtx,
}

impl Format {
    /// The format that the name of `path` ends in.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other ending.
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        match name.strip_suffix(".gz").unwrap_or(&name).rsplit_once('.') {
            Some((_, "mtx")) => Ok(Self::Mtx),
            Some((_, "smtx")) => Ok(Self::Smtx),
            _ => Err(Error::argument(
                "file",
                format!("{}: the name ends neither in .mtx nor in .smtx (.gz may follow)", path.display()),
            )),
        }
    }
}
