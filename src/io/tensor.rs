//! A tensor from a file of any format, and to one.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::tns::entry_lines;
use super::{ReadOptions, read_tns, read_tnsb, write_tns, write_tnsb};
use crate::error::{Error, Result};
use crate::formats::CooTensor;

/// A file format of tensors, by the ending of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorFormat {
    /// FROSTT's text, `.tns` or `.tns.gz`.
    Tns,
    /// This library's binary format, `.tnsb`.
    Tnsb,
}

impl TensorFormat {
    /// The format that the name of `path` ends in.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other ending.
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        if name.ends_with(".tnsb") {
            return Ok(Self::Tnsb);
        }
        if name.strip_suffix(".gz").unwrap_or(&name).ends_with(".tns") {
            return Ok(Self::Tns);
        }
        let detail = format!("{}: the name ends neither in .tns, .tns.gz nor in .tnsb", path.display());
        Err(Error::argument("file", detail))
    }
}

/// What becomes of entries at the same place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// An error that names them.
    #[default]
    Refuse,
    /// Their sum.
    Sum,
}

/// The tensor in the file `path`, whose name tells the format. Coordinates of a text file start at 0 if `zero_based`, else at 1.
/// Entries stay in file order, unless duplicates are summed: they are then sorted by mode 0, 1, 2, ....
///
/// # Errors
/// [`Error::Argument`] for a name of no known format, [`Error::Io`], and [`Error::Parse`] with the file and line of the
/// first mistake; line 0 where the file has no lines or no single one is wrong.
#[inline(never)]
pub fn read_tensor<T: Scalar>(
    path: &Path,
    zero_based: bool,
    duplicates: Duplicates,
    options: ReadOptions<'_>,
) -> Result<CooTensor<T>> {
    let mut tensor = match TensorFormat::of(path)? {
        TensorFormat::Tns => read_tns(path, zero_based, options)?,
        TensorFormat::Tnsb => read_tnsb(path)?,
    };
    match duplicates {
        Duplicates::Refuse => refuse_duplicates(path, &tensor)?,
        Duplicates::Sum => {
            tensor.sum_duplicates().map_err(|e| super::matrix::whole_file(path, e))?;
        }
    }
    Ok(tensor)
}

/// Whether no two entries of `tensor`, read from `path`, are at the same place; the error has the line of the second one.
fn refuse_duplicates<T: Scalar>(path: &Path, tensor: &CooTensor<T>) -> Result<()> {
    let Some((p, q)) = tensor.first_duplicate().map_err(|e| super::matrix::whole_file(path, e))? else { return Ok(()) };
    let (line, detail) = match TensorFormat::of(path)? {
        TensorFormat::Tns => {
            let [first, second] = entry_lines(path, [p, q])?;
            (second, format!("the place of line {first} occurs again"))
        }
        TensorFormat::Tnsb => {
            (0, format!("entries {} and {} are both at {:?}, counted from 0", p + 1, q + 1, tensor.places().place(p)))
        }
    };
    Err(Error::Parse { path: path.to_owned(), line, detail })
}

/// Whether all values of `tensor`, read from the file `path` without changing the order of entries, are finite.
///
/// # Errors
/// [`Error::Parse`] with the line of the first one that is not; 0 for a binary file.
pub fn check_finite<T: Scalar>(path: &Path, tensor: &CooTensor<T>) -> Result<()> {
    let Some(p) = tensor.values().iter().position(|x| !x.to_f64().is_finite()) else { return Ok(()) };
    let [line] = match TensorFormat::of(path)? {
        TensorFormat::Tns => entry_lines(path, [p])?,
        TensorFormat::Tnsb => [0],
    };
    let detail = format!("entry {}: the value {} is not finite", p + 1, tensor.values()[p]);
    Err(Error::Parse { path: path.to_owned(), line, detail })
}

/// Writes `tensor` to the file `path`, whose name tells the format; a text file is 1-based and gets a header only where
/// the entries do not tell the lengths of the modes.
///
/// # Errors
/// [`Error::Argument`] for a name of no known format, [`Error::Io`].
#[inline(never)]
pub fn write_tensor<T: Scalar>(path: &Path, tensor: &CooTensor<T>) -> Result<()> {
    match TensorFormat::of(path)? {
        TensorFormat::Tns => {
            let told = |(indices, &dim): (&Vec<u32>, &usize)| indices.iter().any(|&i| i as usize + 1 == dim);
            let header = !tensor.all_coords().iter().zip(tensor.dims()).all(told);
            write_tns(path, tensor, header, false)
        }
        TensorFormat::Tnsb => write_tnsb(path, tensor),
    }
}
