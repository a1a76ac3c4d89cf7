//! A part of a Matrix Market file, for one of several readers.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::mtx::{Field, check_dims, read_coordinates, read_header, to_coo};
use super::text::{ReadOptions, Text};
use crate::error::{Error, Result};
use crate::formats::Coo;

/// The entries of a part of a file.
#[derive(Clone, Debug)]
pub struct MtxPart<T> {
    /// The entries, mirror images included, of a matrix of the whole file's dimensions. Places may be repeated.
    pub entries: Coo<T>,
    /// Whether the file has values; else all are 1.
    pub valued: bool,
    /// Entries that the part has in the file, without mirror images.
    pub stored: u64,
    /// Entries of the whole file, as its size line says.
    pub claimed: u64,
}

/// Part number `part` of `parts` of the Matrix Market file `path`: lines of about as many bytes in each. Every line is in one part;
/// the parts' entries, one part after the other, are those of [`read_mtx`](super::read_mtx). That `stored` adds up to `claimed` is left
/// to who has all parts ([`MtxPart::check_total`]).
///
/// # Errors
/// [`Error::Io`]; [`Error::Parse`] with the line of the part's first mistake, counted in the file, and for arrays; [`Error::Argument`]
/// for a compressed file and several parts.
#[inline(never)]
pub fn read_mtx_part<T: Scalar>(
    path: &Path,
    part: usize,
    parts: usize,
    options: ReadOptions<'_>,
) -> Result<MtxPart<T>> {
    let mut text = Text::open(path, options)?;
    let header = read_header(&mut text)?;
    if !header.coordinate {
        return Err(text.fault("an array is read as a whole: a matrix for several ranks lists coordinates"));
    }
    check_dims(&text, &header, text.stored())?;
    text.take_part(part, parts)?;
    let (entries, stored) = read_coordinates(&mut text, &header, u64::MAX)?;
    let entries = to_coo(&header, entries);
    Ok(MtxPart { entries, valued: header.field != Field::Pattern, stored, claimed: header.entries })
}

impl<T> MtxPart<T> {
    /// Whether `total` entries, those of all parts, are as many as the size line of `path` says.
    ///
    /// # Errors
    /// [`Error::Parse`] of the whole file.
    pub fn check_total(&self, path: &Path, total: u64) -> Result<()> {
        if total == self.claimed {
            return Ok(());
        }
        let detail = format!("{total} entries, and {} in the size line", self.claimed);
        Err(Error::Parse { path: path.to_owned(), line: 0, detail })
    }
}
